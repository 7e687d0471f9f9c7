// Shared code of the CPU references of the optimizers.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "kernels/math/cpu_math.h"

namespace octavo::cpu {

// Returns whether the step is skipped (kernels/optimizer/skip_update.h).
inline bool skips(const Tensor& skip) { return skip.defined() && skip.data<float>()[0] != 0; }

// Returns the factor that scales the gradients to a norm of at most `grad_clip`, or 1 if `grad_clip` is 0.
inline float clip_factor(float grad_clip, const Tensor& grad_sum_of_squares) {
  if (grad_clip <= 0) return 1.0f;
  const float factor = grad_clip / (std::sqrt(grad_sum_of_squares.data<float>()[0]) + 1e-6f);
  return factor > 1.0f ? 1.0f : factor;  // a NaN norm gives NaN
}

// Computes the amax of the updated master weights, and rounds them to bfloat16, each if its tensor is defined.
inline void cast_weights(const Tensor& master, const Tensor& amax, const Tensor& weight) {
  update_amax<float>(amax, master);
  if (weight.defined()) convert(weight.data<BFloat16>(), master.data<float>(), master.numel());
}

}  // namespace octavo::cpu
