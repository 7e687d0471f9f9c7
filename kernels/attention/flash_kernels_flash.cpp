// Stands in for the kernels in a build with OCTAVO_FLASH_ATTENTION=OFF, which plans as any other but cannot attend on a
// GPU.
#include "core/error.h"
#include "kernels/attention/flash_kernels.h"
#include "kernels/attention/flash_ordered_kernels.h"

namespace octavo::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(
      "this program was built without the kernels of FlashAttention, as on a machine without a GPU, expected one that "
      "cmake --preset default builds");
}

}  // namespace

template <int kHeadDim>
void run_flash_forward(Flash_fwd_params&, CUstream_st*) {
  refuse();
}
template <int kHeadDim>
void run_flash_backward(Flash_bwd_params&, CUstream_st*) {
  refuse();
}
template <int kHeadDim>
void run_flash_ordered_backward(Flash_bwd_params&, CUstream_st*) {
  refuse();
}

template void run_flash_forward<64>(Flash_fwd_params&, CUstream_st*);
template void run_flash_forward<128>(Flash_fwd_params&, CUstream_st*);
template void run_flash_backward<64>(Flash_bwd_params&, CUstream_st*);
template void run_flash_backward<128>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<64>(Flash_bwd_params&, CUstream_st*);
template void run_flash_ordered_backward<128>(Flash_bwd_params&, CUstream_st*);

}  // namespace octavo::cuda
