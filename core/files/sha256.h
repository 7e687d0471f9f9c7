// SHA-256 (FIPS 180-4), for identities that scripts in other languages compute too.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

// Computes the hash of bytes that arrive in chunks of any size. Used by one thread.
class Sha256 {
 public:
  void add(std::string_view bytes);
  // Returns the hash of all added bytes as 64 hex digits. Must be called once, after the last add().
  std::string hex();

 private:
  void add_block(const unsigned char* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string pending_;  // Bytes at the end that do not fill a block yet.
  uint64_t size_bytes_ = 0;
};

}  // namespace octavo
