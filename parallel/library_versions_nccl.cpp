#include <nccl.h>

#include "core/error.h"
#include "parallel/library_versions.h"

namespace octavo {

std::string loaded_nccl_version() {
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess, "NCCL: ncclGetVersion failed");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo
