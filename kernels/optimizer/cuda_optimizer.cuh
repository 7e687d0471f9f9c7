// What the GPU's optimizers have in common; kernels/optimizer/cpu_optimizer.h is the CPU's.
#pragma once

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

// kernels/optimizer/skip_update.h: whether a step changes nothing.
__device__ inline bool skips(const float* skip) { return skip != nullptr && *skip != 0; }

// What gradients are multiplied with, so that their norm is at most `grad_clip`; 1 where that is 0.
__device__ inline float clip_factor(float grad_clip, const float* grad_sum_of_squares) {
  if (grad_clip <= 0) return 1.0f;
  const float factor = grad_clip / (sqrtf(*grad_sum_of_squares) + 1e-6f);
  return factor > 1.0f ? 1.0f : factor;  // a NaN norm stays NaN and shows
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
