// Shared code of the CUDA kernels of the optimizers, as kernels/optimizer/cpu_optimizer.h is for the CPU.
#pragma once

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

// Returns whether the step is skipped (kernels/optimizer/skip_update.h).
__device__ inline bool skips(const float* skip) { return skip != nullptr && *skip != 0; }

// Returns the factor that scales the gradients to a norm of at most `grad_clip`, or 1 if `grad_clip` is 0.
__device__ inline float clip_factor(float grad_clip, const float* grad_sum_of_squares) {
  if (grad_clip <= 0) return 1.0f;
  const float factor = grad_clip / (sqrtf(*grad_sum_of_squares) + 1e-6f);
  return factor > 1.0f ? 1.0f : factor;  // a NaN norm gives NaN
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
