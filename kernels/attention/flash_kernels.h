// The kernels of FlashAttention-3 that are compiled here: causal sequences of one length, heads of 64 and 128,
// bfloat16. A file a size, as each takes a minute to compile. Throw where a kernel cannot be launched.
#pragma once

struct CUstream_st;
struct Flash_fwd_params;  // flash.h, which says what they are
struct Flash_bwd_params;

namespace octavo::cuda {

template <int kHeadDim>
void run_flash_forward(Flash_fwd_params& params, CUstream_st* stream);
// The query heads of a key head are added up in float32.
template <int kHeadDim>
void run_flash_backward(Flash_bwd_params& params, CUstream_st* stream);

}  // namespace octavo::cuda
