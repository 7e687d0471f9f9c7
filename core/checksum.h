// The checksum of checkpoints: XXH3 of 64 bits (github.com/Cyan4973/xxHash), for errors of disks, not of attackers.
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

// Of `count` bytes at `bytes`, as 16 hex digits.
std::string checksum_hex(const void* bytes, int64_t count);

}  // namespace octavo
