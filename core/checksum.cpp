#include "core/checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace octavo {

std::string checksum_hex(const void* bytes, int64_t count) {
  return fmt::format("{:016x}", XXH3_64bits(bytes, static_cast<size_t>(count)));
}

}  // namespace octavo
