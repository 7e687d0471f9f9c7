// Hash of the bits of a tensor. Ranks compare hashes instead of sending tensors that must be equal:
//
//   out += sum over i of bits(x[i]) * key(begin + i)   modulo 2^64
//   key(i) = (mix_bits(i / g) ^ mix_bits(~(i % g))) | 1
//
// where g is the number of elements in 16 bytes (multilinear hashing, Carter and Wegman, "Universal classes of hash
// functions", 1979; keys: kernels/math/bit_hash_key.h). Keys are odd, so a change of any one element always changes the
// sum. Changes of several elements cancel with probability 2^-64. Integer addition is associative, so the hash is equal
// on every device and for any number of threads, and the hash of a tensor is the sum of the hashes of its slices.
//
// Queued on `stream`. On a GPU x is read once, 16 bytes at a time if x[i] is aligned to 16 bytes wherever begin + i is
// a multiple of g.
#pragma once

#include "core/stream.h"

namespace octavo {

struct BitHash {
  // += [2] int32: the lower and the upper half of the 64-bit hash, aligned to 8 bytes.
  Tensor out;
  Tensor x;  // [n], any dtype
  // Index of x[0] in the hashed tensor, in elements.
  int64_t begin = 0;
};
void bit_hash(const BitHash& args, Stream& stream);

}  // namespace octavo
