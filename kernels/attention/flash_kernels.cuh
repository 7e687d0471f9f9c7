// Implementation of kernels/attention/flash_kernels.h.
#pragma once

#include "kernels/attention/flash_kernels.h"
#include "kernels/attention/flash_launch.cuh"

namespace octavo::cuda {

template <int kHeadDim>
void run_flash_forward(Flash_fwd_params& params, cudaStream_t stream) {
  constexpr bool kCausal = true;
  // The arguments switch off the window, soft cap, padding, pages, cache, second query, packed heads, split keys and
  // transposed values.
  run_flash_fwd<90, kHeadDim, kHeadDim, /*ClusterM=*/1, cutlass::bfloat16_t, cutlass::bfloat16_t, kCausal, false, false,
                false, false, false, false, false, false, false>(params, stream);
}

template <int kHeadDim>
void run_flash_backward(Flash_bwd_params& params, cudaStream_t stream) {
  launch_flash_backward<kHeadDim, /*kInOrder=*/false>(params, stream);
}

}  // namespace octavo::cuda
