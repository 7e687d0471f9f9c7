#include "kernels/library_versions.h"

#include "build_config.h"

namespace octavo {

std::string cublaslt_version() {
  if constexpr (kHasCuda) return cuda::cublaslt_version();
  return "";
}

std::string cudnn_version() {
  if constexpr (kHasCuda) return cuda::cudnn_version();
  return "";
}

}  // namespace octavo
