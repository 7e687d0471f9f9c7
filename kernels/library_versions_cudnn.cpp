#include <cudnn.h>
#include <fmt/format.h>

#include "kernels/library_versions.h"

namespace octavo::cuda {

std::string cudnn_version() {
  const size_t version = cudnnGetVersion();  // of cuDNN 9 and newer: 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo::cuda
