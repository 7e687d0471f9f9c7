// Error checks, included only by files that call CUDA.
#pragma once

#include <cuda_runtime_api.h>

namespace octavo::cuda {

// Throws an Error that names `what` unless status is cudaSuccess.
void check(cudaError_t status, const char* what);

}  // namespace octavo::cuda
