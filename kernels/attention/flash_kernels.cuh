// Of kernels/attention/flash_kernels.h, for the files that compile them.
#pragma once

#include "flash_bwd_launch_template.h"
#include "flash_fwd_launch_template.h"
#include "kernels/attention/flash_kernels.h"

namespace octavo::cuda {

// Backward's tiles and how its warp groups share them, as the authors chose them for causal attention.
template <int kHeadDim>
struct FlashTiles;
template <>
struct FlashTiles<64> {
  static constexpr int kQueries = 128, kQueryWarpGroups = 2;
};
template <>
struct FlashTiles<128> {
  static constexpr int kQueries = 64, kQueryWarpGroups = 1;
};

template <int kHeadDim>
void run_flash_forward(Flash_fwd_params& params, cudaStream_t stream) {
  constexpr bool kCausal = true;
  // No window, soft cap, padding, pages, cache, second query, packed heads, split of the keys, or transposed values.
  run_flash_fwd<90, kHeadDim, kHeadDim, /*ClusterM=*/1, cutlass::bfloat16_t, cutlass::bfloat16_t, kCausal, false, false,
                false, false, false, false, false, false, false>(params, stream);
}

template <int kHeadDim, bool kDeterministic>
void run_flash_backward(Flash_bwd_params& params, cudaStream_t stream) {
  using Tiles = FlashTiles<kHeadDim>;
  constexpr int kKeys = 128;
  constexpr bool kCausal = true, kGrouped = true;
  // No window, soft cap or padding; then stages, and which products are transposed.
  run_flash_bwd<90, kHeadDim, Tiles::kQueries, kKeys, cutlass::bfloat16_t, kCausal, false, false, false, kDeterministic,
                kGrouped, 2, 2, true, false, false, 2, 1, 2, Tiles::kQueryWarpGroups, false>(params, stream);
}

template <int kHeadDim>
void run_flash_backward(Flash_bwd_params& params, cudaStream_t stream) {
  auto* run = params.deterministic ? run_flash_backward<kHeadDim, true> : run_flash_backward<kHeadDim, false>;
  run(params, stream);
}

}  // namespace octavo::cuda
