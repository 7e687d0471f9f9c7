// cuBLASLt, loaded by the first call of one of its functions. Loading it registers all of its kernels, which takes 120
// ms of a core, and a run on the CPU needs none of them. So nothing is linked with the library: load_cublaslt.cpp
// defines the functions of <cublasLt.h> that Octavo calls, and each of them calls the library's function of the same
// name.
#pragma once

namespace octavo::cuda {

// Returns the address of the library's function of this name. Throws if the library is missing or lacks the function.
void* cublaslt_function(const char* name);

}  // namespace octavo::cuda
