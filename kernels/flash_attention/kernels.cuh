// Implementation of kernels/flash_attention/kernels.h.
#pragma once

#include "kernels/flash_attention/kernels.h"
#include "kernels/flash_attention/launch.cuh"

namespace octavo::cuda {

template <int kHeadDim, bool kVarlen>
void run_flash_forward(Flash_fwd_params& params, cudaStream_t stream) {
  constexpr bool kCausal = true;
  static_assert(std::get<0>(tile_size_fwd_sm90(kHeadDim, kHeadDim, kCausal, false)) == flash_forward_tile(kHeadDim));
  // The `false` arguments before kVarlen switch off sliding windows and the soft cap, those after it paged keys, new
  // keys to append, the additional query Qv, packed query heads, split keys and column-major values.
  run_flash_fwd<90, kHeadDim, kHeadDim, /*ClusterM=*/1, cutlass::bfloat16_t, cutlass::bfloat16_t, kCausal, false, false,
                kVarlen, false, false, false, false, false, false>(params, stream);
}

template <int kHeadDim, bool kVarlen>
void run_flash_backward(Flash_bwd_params& params, cudaStream_t stream) {
  launch_flash_backward<kHeadDim, kVarlen, /*kInOrder=*/false>(params, stream);
}

}  // namespace octavo::cuda
