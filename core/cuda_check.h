// Error checks for the files that call CUDA; included by them alone.
#pragma once

#include <cuda_runtime_api.h>

namespace octavo::cuda {

// Throws Error naming `what` unless status is cudaSuccess.
void check(cudaError_t status, const char* what);

}  // namespace octavo::cuda
