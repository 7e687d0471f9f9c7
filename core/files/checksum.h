// The checksum of checkpoints: XXH3 of 64 bits (github.com/Cyan4973/xxHash), for errors of disks, not of attackers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octavo {

// Of `count` bytes at `bytes`.
uint64_t checksum(const void* bytes, int64_t count);
// The same as 16 hex digits.
std::string checksum_hex(const void* bytes, int64_t count);

// The same of bytes that come piece by piece, however they are divided.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* bytes, int64_t count);
  std::string hex() const;  // of all that was added

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
