// Deterministic variant of run_flash_backward (kernels/flash_attention/kernels.h). All sums have a fixed order, so
// results are equal bit for bit in every run.
#pragma once

struct CUstream_st;
struct Flash_bwd_params;

namespace octavo::cuda {

template <int kHeadDim, bool kVarlen>
void run_flash_ordered_backward(Flash_bwd_params& params, CUstream_st* stream);

}  // namespace octavo::cuda
