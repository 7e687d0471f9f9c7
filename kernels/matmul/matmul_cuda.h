// The CUDA implementations of the ops in kernels/matmul/ (kernels/cuda/dispatch.h). Each has the contract of its op.
#pragma once

#include "kernels/matmul/matmul.h"

namespace octavo::cuda {

void matmul(const Matmul& args, Stream& stream);
std::string cublaslt_version();

}  // namespace octavo::cuda
