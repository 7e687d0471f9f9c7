#include "kernels/layers/cross_entropy.h"

#include <cmath>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/layers/cross_entropy_cpu.h"
#include "kernels/layers/layers_cuda.h"

namespace octavo {

namespace cpu {

template <typename T>
void cross_entropy_row(const CrossEntropy& args, int64_t t) {
  const int64_t vocab = args.logits.dim(1);
  const T* logits = args.logits.data<T>() + t * vocab;
  T* d_logits = args.d_logits.defined() ? args.d_logits.data<T>() + t * vocab : nullptr;
  const int32_t target = args.targets.data<int32_t>()[t];
  float& loss = args.losses.data<float>()[t];
  float* z_loss = args.z_losses.defined() ? args.z_losses.data<float>() + t : nullptr;
  if (target < 0) {
    loss = 0;
    if (z_loss != nullptr) *z_loss = 0;
    if (d_logits != nullptr) std::fill_n(d_logits, vocab, T(0.0f));
    return;
  }
  const float max = row_max(logits, vocab);
  const SoftmaxRow row{max, sum_of_exp(logits, vocab, max)};
  const float normalizer = log_sum_exp(row);
  loss = normalizer - static_cast<float>(logits[target]);
  if (z_loss != nullptr) *z_loss = args.z_loss * normalizer * normalizer;
  if (d_logits != nullptr) loss_gradient(d_logits, logits, vocab, target, row, {args.scale, args.z_loss});
}

}  // namespace cpu

void cross_entropy(const CrossEntropy& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const int64_t vocab = args.logits.dim(1);
  const DType compute = args.logits.dtype();
  expect_tensor(args.logits, "cross_entropy logits", compute, {tokens, vocab});
  expect_tensor(args.losses, "cross_entropy losses", DType::kFloat32, {tokens});
  expect_tensor(args.targets, "cross_entropy targets", DType::kInt32, {tokens});
  if (args.d_logits.defined()) expect_tensor(args.d_logits, "cross_entropy d_logits", compute, {tokens, vocab});
  if (args.z_losses.defined()) expect_tensor(args.z_losses, "cross_entropy z_losses", DType::kFloat32, {tokens});
  if (args.cast.defined()) {
    expect_tensor(args.d_logits, "cross_entropy d_logits", compute, {tokens, vocab});
    check_cast(args.cast, CastOf::kGradient, "cross_entropy", args.d_logits, stream);
    CHECK(!args.cast.columns.defined() && args.cast.bound, "cross_entropy cast: expected rows alone, of a bound");
  }
  const double written = args.d_logits.defined() ? result_bytes(args.cast, args.d_logits) : 0;
  const OpTimer timer(stream, {.name = "cross_entropy",
                               .bytes = static_cast<double>(args.logits.bytes()) + written,
                               .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::cross_entropy>(args, stream)) return;
  cpu::with_compute_dtype(compute, [&]<typename T>() {
#pragma omp parallel for
    for (int64_t t = 0; t < tokens; ++t) cpu::cross_entropy_row<T>(args, t);
  });
  cpu::cast_result(args.cast, args.d_logits);
}

}  // namespace octavo
