// Includes FlashAttention-3's templates for the files that compile its kernels. The macros make its errors exceptions.
// FlashAttention itself would end the program, or continue after a failed launch.
#pragma once

#include <cuda_check.h>  // FlashAttention's
#include <cutlass/kernel_launch.h>

#include "core/cuda_check.h"
#include "kernels/flash_attention/document_scheduler.cuh"
#include "kernels/flash_attention/tiles.h"

namespace cutlass {

template <typename Kernel, typename Params>
void launch_or_throw(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, const Params& params,
                     bool /*launch_with_pdl*/) {
  device_kernel<Kernel><<<grid, block, shared_bytes, stream>>>(params);
  octavo::cuda::check(cudaGetLastError(), "the launch of a kernel of FlashAttention");
}

}  // namespace cutlass

#undef CHECK_CUDA
#define CHECK_CUDA(call) octavo::cuda::check(call, "FlashAttention")
#define kernel_launch launch_or_throw
#define SingleTileBwdLPTScheduler BackwardTileScheduler
#include "flash_bwd_launch_template.h"
#include "flash_fwd_launch_template.h"
#undef SingleTileBwdLPTScheduler
#undef kernel_launch

namespace octavo::cuda {

template <int kHeadDim, bool kVarlen, bool kInOrder>
void launch_flash_backward(Flash_bwd_params& params, cudaStream_t stream) {
  constexpr int kQueries = flash_query_tile(kHeadDim);
  constexpr int kQueryWarpGroups = kQueries / 64;  // Number of warp groups that share a tile of queries.
  constexpr bool kCausal = true, kGrouped = true;
  // The two `false` after kCausal switch off the window and the soft cap. The arguments after kGrouped are the numbers
  // of pipeline stages, which matmuls are computed transposed, the layout of the warp groups, and whether v is kept in
  // registers.
  run_flash_bwd<90, kHeadDim, kQueries, kFlashKeyTile, cutlass::bfloat16_t, kCausal, false, false, kVarlen, kInOrder,
                kGrouped, 2, 2, true, false, false, 2, 1, 2, kQueryWarpGroups, false>(params, stream);
}

}  // namespace octavo::cuda
