// A hash of bits, to compare tensors that must be equal without bringing them together:
//
//   out += sum over i of bits(x[i]) * key(begin + i)   modulo 2^64
//   key(i) = (mix_bits(i / g) ^ mix_bits(~(i % g))) | 1
//
// with g the elements of 16 bytes (multilinear hashing, Carter and Wegman, "Universal classes of hash functions", 1979;
// keys: kernels/math/bit_hash_key.h). Keys are odd, so that a change of one element always changes the sum, whichever
// of its bits it is in; changes of several cancel as often as 64 random bits are zero. Integers add in any order to the
// same bits: the hash is the same on every device, for any number of threads, and that of a tensor is the sum of those
// of its stretches.
//
// Queued on `stream`. On a GPU it reads x once, 16 bytes at a time where x[i] is so aligned that begin + i is a
// multiple of g.
#pragma once

#include "core/stream.h"

namespace octavo {

struct BitHash {
  Tensor out;         // += [2] int32: the lower and the upper half of 64 bits, aligned to 8 bytes
  Tensor x;           // [n], any dtype
  int64_t begin = 0;  // of x in what is hashed, in elements
};
void bit_hash(const BitHash& args, Stream& stream);

}  // namespace octavo
