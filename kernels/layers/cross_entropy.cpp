#include "kernels/layers/cross_entropy.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/layers/cross_entropy_cpu.h"
#include "kernels/layers/layers_cuda.h"

namespace octavo {

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
    const auto find_row = [&](int64_t, const T* logits, int64_t target) {
      const float max = cpu::row_max(logits, vocab);
      return cpu::WholeRow{{max, cpu::sum_of_exp(logits, vocab, max)}, static_cast<float>(logits[target])};
    };
#pragma omp parallel for
    for (int64_t t = 0; t < tokens; ++t) cpu::cross_entropy_row<T>(args, t, 0, find_row);
  });
  cpu::cast_result(args.cast, args.d_logits);
}

void mask_padding(const MaskPadding& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const int64_t columns = args.logits.dim(1);
  CHECK(args.vocab <= columns, "mask_padding: {} entries of the vocabulary in {}", args.vocab, args.logits.describe());
  const OpTimer timer(stream, "mask_padding", tokens * (columns - args.vocab) * dtype_bytes(args.logits.dtype()));
  if (ran_elsewhere<cuda::mask_padding>(args, stream)) return;
  cpu::with_compute_dtype(args.logits.dtype(), [&]<typename T>() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    T* logits = args.logits.data<T>();
    for (int64_t t = 0; t < tokens; ++t) {
      std::fill(logits + t * columns + args.vocab, logits + (t + 1) * columns, T(-kInfinity));
    }
  });
}

}  // namespace octavo
