// The checksum of checkpoints: 64-bit XXH3 (github.com/Cyan4973/xxHash). It detects disk errors, not attacks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octavo {

// Returns the checksum of `count` bytes at `bytes`.
uint64_t checksum(const void* bytes, int64_t count);
// Returns the checksum as 16 hex digits.
std::string checksum_hex(const void* bytes, int64_t count);

// Computes the checksum of bytes that arrive in chunks of any size.
class Checksum {
 public:
  Checksum();
  ~Checksum();

  void add(const void* bytes, int64_t count);
  std::string hex() const;  // Returns the checksum of all added bytes.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
