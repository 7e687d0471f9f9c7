#include "kernels/flash_attention/kernels.cuh"

namespace octavo::cuda {

template void run_flash_forward<64, false>(Flash_fwd_params& params, cudaStream_t stream);
template void run_flash_backward<64, false>(Flash_bwd_params& params, cudaStream_t stream);

}  // namespace octavo::cuda
