// Replaces the kernels in a build with OCTAVO_FLASH_ATTENTION=OFF. Such a build plans like any other, but cannot run
// attention on a GPU.
#include "core/error.h"
#include "kernels/flash_attention/kernels.h"
#include "kernels/flash_attention/ordered_kernels.h"

namespace octavo::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(
      "this program was built without the kernels of FlashAttention and cannot run attention on a GPU; build it with "
      "cmake --preset default");
}

}  // namespace

template <int kHeadDim, bool kVarlen>
void run_flash_forward(Flash_fwd_params&, CUstream_st*) {
  refuse();
}
template <int kHeadDim, bool kVarlen>
void run_flash_backward(Flash_bwd_params&, CUstream_st*) {
  refuse();
}
template <int kHeadDim, bool kVarlen>
void run_flash_ordered_backward(Flash_bwd_params&, CUstream_st*) {
  refuse();
}

template void run_flash_forward<64, false>(Flash_fwd_params&, CUstream_st*);
template void run_flash_forward<64, true>(Flash_fwd_params&, CUstream_st*);
template void run_flash_forward<128, false>(Flash_fwd_params&, CUstream_st*);
template void run_flash_forward<128, true>(Flash_fwd_params&, CUstream_st*);
template void run_flash_backward<64, false>(Flash_bwd_params&, CUstream_st*);
template void run_flash_backward<64, true>(Flash_bwd_params&, CUstream_st*);
template void run_flash_backward<128, false>(Flash_bwd_params&, CUstream_st*);
template void run_flash_backward<128, true>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<64, false>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<64, true>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<128, false>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<128, true>(Flash_bwd_params&, CUstream_st*);

}  // namespace octavo::cuda
