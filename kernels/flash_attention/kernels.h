// Kernels of FlashAttention-3 that this program compiles: causal sequences, head sizes 64 and 128, bfloat16. With
// kVarlen each sequence has its own length. Each combination has its own file, because each takes a minute to compile.
// The functions throw if a kernel cannot be launched.
#pragma once

struct CUstream_st;
struct Flash_fwd_params;  // Defined and documented in FlashAttention's flash.h.
struct Flash_bwd_params;

namespace octavo::cuda {

template <int kHeadDim, bool kVarlen>
void run_flash_forward(Flash_fwd_params& params, CUstream_st* stream);
// Sums the gradients of the query heads that share a key head in float32.
template <int kHeadDim, bool kVarlen>
void run_flash_backward(Flash_bwd_params& params, CUstream_st* stream);

}  // namespace octavo::cuda
