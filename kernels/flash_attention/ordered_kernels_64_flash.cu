#include "kernels/flash_attention/ordered_kernels.cuh"

namespace octavo::cuda {

template void run_flash_ordered_backward<64, false>(Flash_bwd_params& params, cudaStream_t stream);

}  // namespace octavo::cuda
