#include "kernels/layers/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/layers/layers_cuda.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace cpu {

template <typename T>
void rms_norm_forward(const RmsNormForward& args) {
  const int64_t tokens = args.x.dim(0);
  const int64_t hidden = args.x.dim(1);
  const T* weight = args.weight.data<T>();
  float* rstd = args.rstd.data<float>();
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const T* h = args.x.data<T>() + t * hidden;
    if (args.residual.defined()) {
      const T* residual = args.residual.data<T>() + t * hidden;
      T* sum = args.residual_out.data<T>() + t * hidden;
#pragma omp simd
      for (int64_t c = 0; c < hidden; ++c) sum[c] = T(static_cast<float>(h[c]) + static_cast<float>(residual[c]));
      h = sum;
    }
    // The sum is in double, because the last bits of squares of bfloat16 values are mostly rounded down in float32, and
    // a long sum would become too small.
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < hidden; ++c)
      squares += static_cast<double>(static_cast<float>(h[c]) * static_cast<float>(h[c]));
    const auto mean = static_cast<float>(squares / static_cast<double>(hidden));
    const float scale = 1.0f / std::sqrt(mean + args.eps);
    rstd[t] = scale;
    T* out = args.out.data<T>() + t * hidden;
#pragma omp simd
    for (int64_t c = 0; c < hidden; ++c) out[c] = T(static_cast<float>(h[c]) * scale * static_cast<float>(weight[c]));
  }
}

// Number of slices of the tokens. d_weight is summed per slice and then over the slices in order, so that it does not
// depend on the number of threads.
constexpr int64_t kSlices = 32;

// Computes d_h of one token, and adds the token's term to `d_weight`.
template <typename T>
void rms_norm_backward_row(const RmsNormBackward& args, int64_t t, float* d_weight) {
  const int64_t hidden = args.h.dim(1);
  const T* weight = args.weight.data<T>();
  const T* h = args.h.data<T>() + t * hidden;
  const T* d_out = args.d_out.data<T>() + t * hidden;
  const T* d_residual = args.d_residual.defined() ? args.d_residual.data<T>() + t * hidden : nullptr;
  T* d_h = args.d_h.data<T>() + t * hidden;
  const float rstd = args.rstd.data<float>()[t];
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t c = 0; c < hidden; ++c) {
    const float product = static_cast<float>(d_out[c]) * static_cast<float>(h[c]);
    d_weight[c] += product * rstd;
    dot += product * static_cast<float>(weight[c]);
  }
  const float projection = rstd * rstd * dot / static_cast<float>(hidden);
#pragma omp simd
  for (int64_t c = 0; c < hidden; ++c) {
    const float normed = static_cast<float>(d_out[c]) * static_cast<float>(weight[c]);
    const float d = rstd * (normed - static_cast<float>(h[c]) * projection);
    d_h[c] = T(d_residual != nullptr ? d + static_cast<float>(d_residual[c]) : d);
  }
}

// Computes the gradients. `partial` is scratch [kSlices, hidden].
template <typename T>
void rms_norm_backward(const RmsNormBackward& args, float* partial) {
  const int64_t tokens = args.h.dim(0);
  const int64_t hidden = args.h.dim(1);
#pragma omp parallel for
  for (int64_t s = 0; s < kSlices; ++s) {
    float* sums = partial + s * hidden;
    std::fill_n(sums, hidden, 0.0f);
    for (int64_t t = tokens * s / kSlices; t < tokens * (s + 1) / kSlices; ++t) {
      rms_norm_backward_row<T>(args, t, sums);
    }
  }
  float* d_weight = args.d_weight.data<float>();
  for (int64_t s = 0; s < kSlices; ++s) {
#pragma omp simd
    for (int64_t c = 0; c < hidden; ++c) d_weight[c] += partial[s * hidden + c];
  }
}

}  // namespace cpu

void rms_norm_forward(const RmsNormForward& args, Stream& stream) {
  const int64_t tokens = args.x.dim(0);
  const int64_t hidden = args.x.dim(1);
  const DType compute = args.x.dtype();
  expect_tensor(args.x, "rms_norm_forward x", compute, {tokens, hidden});
  expect_tensor(args.out, "rms_norm_forward out", compute, {tokens, hidden});
  expect_tensor(args.rstd, "rms_norm_forward rstd", DType::kFloat32, {tokens});
  expect_tensor(args.weight, "rms_norm_forward weight", compute, {hidden});
  if (args.residual.defined()) {
    expect_tensor(args.residual, "rms_norm_forward residual", compute, {tokens, hidden});
    expect_tensor(args.residual_out, "rms_norm_forward residual_out", compute, {tokens, hidden});
  }
  if (args.amax.defined()) expect_tensor(args.amax, "rms_norm_forward amax", DType::kFloat32, {1});
  check_cast(args.cast, CastOf::kActivation, "rms_norm_forward", args.out, stream);
  const double passes = (args.residual.defined() ? 3 : 1) + (args.cast.defined() ? 1 : 0);
  const double bytes = passes * static_cast<double>(args.x.bytes()) + result_bytes(args.cast, args.out);
  const OpTimer timer(stream, {.name = "rms_norm_forward", .bytes = bytes, .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::rms_norm_forward>(args, stream)) return;
  cpu::with_compute_dtype(compute, [&]<typename T>() {
    cpu::rms_norm_forward<T>(args);
    cpu::update_amax<T>(args.amax, args.out);
  });
  cpu::cast_result(args.cast, args.out);
}

void rms_norm_backward(const RmsNormBackward& args, Stream& stream) {
  const int64_t tokens = args.h.dim(0);
  const int64_t hidden = args.h.dim(1);
  const DType compute = args.h.dtype();
  expect_tensor(args.h, "rms_norm_backward h", compute, {tokens, hidden});
  expect_tensor(args.d_h, "rms_norm_backward d_h", compute, {tokens, hidden});
  expect_tensor(args.d_out, "rms_norm_backward d_out", compute, {tokens, hidden});
  expect_tensor(args.d_weight, "rms_norm_backward d_weight", DType::kFloat32, {hidden});
  expect_tensor(args.rstd, "rms_norm_backward rstd", DType::kFloat32, {tokens});
  expect_tensor(args.weight, "rms_norm_backward weight", compute, {hidden});
  if (args.d_residual.defined()) {
    expect_tensor(args.d_residual, "rms_norm_backward d_residual", compute, {tokens, hidden});
  }
  if (args.amax.defined()) expect_tensor(args.amax, "rms_norm_backward amax", DType::kFloat32, {1});
  const int64_t passes = args.d_residual.defined() ? 4 : 3;
  const OpTimer timer(stream, "rms_norm_backward", passes * args.h.bytes());
  if (ran_elsewhere<cuda::rms_norm_backward>(args, stream)) return;
  auto* partial = static_cast<float*>(stream.workspace(rms_norm_backward_workspace_bytes(hidden, stream)));
  cpu::with_compute_dtype(compute, [&]<typename T>() {
    cpu::rms_norm_backward<T>(args, partial);
    cpu::update_amax<T>(args.amax, args.d_h);
  });
}

int64_t rms_norm_backward_workspace_bytes(int64_t hidden, const Stream& stream) {
  const int64_t rows =
      stream.is_cuda() ? stream.multiprocessors() * cuda::kRmsNormBlocksPerMultiprocessor : cpu::kSlices;
  return rows * hidden * dtype_bytes(DType::kFloat32);
}

}  // namespace octavo
