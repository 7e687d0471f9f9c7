// Shared code of the cross entropy kernels: the softmax of a row of logits, combined from parts of the row.
#pragma once

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

// Exponentials are computed as powers of two, with one multiply-add and one special-function instruction:
// e^(x - max) = 2^(x log2(e) - m) with m = max log2(e). Only the rounded m is used, so its rounding error cancels.
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLowest = -1e38f;  // maximum of an empty set; its m is finite, so m - m is not NaN

// Returns 2^x, or 0 if that is less than 2^-126.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The softmax of a part of a row: m = max log2(e), where max is the part's largest logit, and the sum of 2^(x log2(e) -
// m) over the part.
struct alignas(8) SoftmaxPart {
  float m;
  float sum;
};

__device__ inline float power(float logit, float m) { return exp2_approximate(fmaf(logit, kLog2E, -m)); }

__device__ inline SoftmaxPart combine(SoftmaxPart a, SoftmaxPart b) {
  const float m = fmaxf(a.m, b.m);
  return {m, a.sum * exp2_approximate(a.m - m) + b.sum * exp2_approximate(b.m - m)};
}

__device__ inline float loss_of(SoftmaxPart row, float target_logit) {
  return logf(row.sum) + fmaf(row.m, kLn2, -target_logit);
}

__device__ inline float z_loss_of(SoftmaxPart row, float z_loss) {
  const float log_sum_exp = loss_of(row, 0.0f);
  return z_loss * log_sum_exp * log_sum_exp;
}

// Returns the factor by which power() of a logit is multiplied in the gradient of the loss and the z-loss.
__device__ inline float gradient_scale(SoftmaxPart row, float scale, float z_loss) {
  return (z_loss == 0.0f ? scale : scale * fmaf(2.0f * z_loss, loss_of(row, 0.0f), 1.0f)) / row.sum;
}

// Return the largest element, ignoring NaN. A NaN makes the sum of powers NaN instead.
__device__ inline float largest(const Vec<float>& v) {
  float x[4];
  v.widen(x);
  return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
}
__device__ inline float largest(const Vec<__nv_bfloat16>& v) {
  const auto pair = [](uint32_t word) { return *reinterpret_cast<const __nv_bfloat162*>(&word); };
  const __nv_bfloat162 max = __hmax2(__hmax2(pair(v.bits.x), pair(v.bits.y)), __hmax2(pair(v.bits.z), pair(v.bits.w)));
  return fmaxf(__low2float(max), __high2float(max));
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
