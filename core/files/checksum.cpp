#include "core/files/checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace octavo {

struct Checksum::State {
  XXH3_state_t xxh3;
};

uint64_t checksum(const void* bytes, int64_t count) { return XXH3_64bits(bytes, static_cast<size_t>(count)); }

std::string checksum_hex(const void* bytes, int64_t count) { return fmt::format("{:016x}", checksum(bytes, count)); }

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
Checksum::~Checksum() = default;

void Checksum::add(const void* bytes, int64_t count) {
  XXH3_64bits_update(&state_->xxh3, bytes, static_cast<size_t>(count));
}

std::string Checksum::hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh3)); }

}  // namespace octavo
