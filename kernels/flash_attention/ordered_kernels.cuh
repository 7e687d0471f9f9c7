// Implementation of kernels/flash_attention/ordered_kernels.h. A block that has added to a sum signals the next block.
// FlashAttention-3 signals as soon as the copy engine has read the data to add, so the next block's addition may
// overtake it. Here the block waits until its addition is complete.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

namespace cute {

template <int kPending>
CUTE_DEVICE void tma_sums_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cute

#define tma_store_wait tma_sums_wait
#include "kernels/flash_attention/launch.cuh"
#undef tma_store_wait

#include "kernels/flash_attention/ordered_kernels.h"

namespace octavo::cuda {

template <int kHeadDim, bool kVarlen>
void run_flash_ordered_backward(Flash_bwd_params& params, cudaStream_t stream) {
  launch_flash_backward<kHeadDim, kVarlen, /*kInOrder=*/true>(params, stream);
}

}  // namespace octavo::cuda
