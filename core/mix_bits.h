// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): bijective mixes of
// 64 bits. The CPU and the GPU compile this header.
#pragma once

#include <cstdint>

namespace octavo {

// SplitMix64's output function. It maps 0 to 0.
constexpr uint64_t finalize_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// SplitMix64's increment of the state. mix_bits(x) is the number that SplitMix64 returns in state x.
inline constexpr uint64_t kSplitMixIncrement = 0x9e3779b97f4a7c15ull;
constexpr uint64_t mix_bits(uint64_t x) { return finalize_bits(x + kSplitMixIncrement); }

}  // namespace octavo
