// Keys of kernels/math/bit_hash.h, for the CPU and the GPU.
#pragma once

#include "core/mix_bits.h"

namespace octavo {

constexpr uint64_t bit_hash_key(uint64_t index, uint64_t group) {
  return (mix_bits(index / group) ^ mix_bits(~(index % group))) | 1;
}

}  // namespace octavo
