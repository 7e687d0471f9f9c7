// As run_flash_backward of kernels/attention/flash_kernels.h, with all sums in one order, so that results are the same
// to the bit.
#pragma once

struct CUstream_st;
struct Flash_bwd_params;

namespace octavo::cuda {

template <int kHeadDim>
void run_flash_ordered_backward(Flash_bwd_params& params, CUstream_st* stream);

}  // namespace octavo::cuda
