// What one attention on GPUs is of: sequences that lie as strided views in what the caller has, so that nothing is
// copied.
#pragma once

#include <cstdint>
#include <tuple>
#include <unordered_map>

#include "kernels/attention/sdpa.h"

namespace octavo::cuda {

// How far apart, in elements, sequences and the tokens of one lie.
struct Strides {
  int64_t sequence = 0;
  int64_t token = 0;
  auto operator<=>(const Strides&) const = default;
};

// shape.seq_len counts queries; those of a piece see `keys` keys, of which the last are their own.
struct SdpaGeometry {
  SdpaShape shape;
  int64_t keys = 0;
  Strides q, kv, out;  // of the gradients as of the tensors, but for d_kv
  Strides d_kv;

  auto order() const {
    return std::tuple(shape.batch, shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.head_dim, keys, q, kv, out,
                      d_kv);
  }
};

// The lengths that sequences have before their padding.
enum class SdpaLengths : uint8_t {
  kFull,     // no padding: all are as long as the geometry says
  kSquare,   // of each its own, as many queries as keys
  kAtTheEnd  // of each its own of queries and of keys, of which the last are the queries' own
};

// Where its tensors begin, by their names.
enum SdpaTensor : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kQueryLengths, kKeyLengths };
using SdpaPointers = std::unordered_map<int64_t, void*>;

}  // namespace octavo::cuda
