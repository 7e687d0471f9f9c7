// What the CPU's optimizers have in common.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "kernels/math/cpu_math.h"

namespace octavo::cpu {

// kernels/optimizer/skip_update.h: whether a step changes nothing.
inline bool skips(const Tensor& skip) { return skip.defined() && skip.data<float>()[0] != 0; }

// What gradients are multiplied with, so that their norm is at most `grad_clip`; 1 where that is 0.
inline float clip_factor(float grad_clip, const Tensor& grad_sum_of_squares) {
  if (grad_clip <= 0) return 1.0f;
  const float factor = grad_clip / (std::sqrt(grad_sum_of_squares.data<float>()[0]) + 1e-6f);
  return factor > 1.0f ? 1.0f : factor;  // a NaN norm stays NaN and shows
}

// Behind an update of the master weights: their amax, and the weights that travel, where there are any.
inline void publish(const Tensor& master, const Tensor& amax, const Tensor& weight) {
  update_amax<float>(amax, master);
  if (!weight.defined()) return;
  const int64_t n = master.numel();
  const float* from = master.data<float>();
  BFloat16* to = weight.data<BFloat16>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) to[i] = BFloat16(from[i]);
}

}  // namespace octavo::cpu
