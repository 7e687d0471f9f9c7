// Versions of the vendor libraries that this process has loaded, as text ("9.14.0"); empty in a build without CUDA.
#pragma once

#include <string>

namespace octavo {

std::string cublaslt_version();
std::string cudnn_version();

namespace cuda {

// Behind the above, in CUDA builds only.
std::string cublaslt_version();
std::string cudnn_version();

}  // namespace cuda

}  // namespace octavo
