#include "parallel/library_versions.h"

#include "build_config.h"

namespace octavo {

std::string nccl_version() {
  if constexpr (kHasCuda) return loaded_nccl_version();
  return "";
}

}  // namespace octavo
