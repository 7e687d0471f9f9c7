// Geometry of one attention on GPUs. Sequences are strided views of the caller's tensors, so nothing is copied.
#pragma once

#include <cstdint>
#include <tuple>
#include <unordered_map>

#include "kernels/attention_shapes/sdpa_args.h"

namespace octavo::cuda {

// Distances in elements between sequences, and between the tokens of a sequence.
struct Strides {
  int64_t sequence = 0;
  int64_t token = 0;
  auto operator<=>(const Strides&) const = default;
};

// Shape and strides of an attention. shape.seq_len is the number of queries per sequence, which attend to `keys` keys.
// The last of these keys are those of the queries' own tokens.
struct SdpaGeometry {
  SdpaShape shape;
  int64_t keys = 0;
  // Strides of the tensors, and of their gradients except d_kv.
  Strides q, kv, out;
  Strides d_kv;

  auto order() const {
    return std::tuple(shape.batch, shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.head_dim, keys, q, kv, out,
                      d_kv);
  }
};

// Names of the tensors of an attention, and the addresses of the tensors by name.
enum SdpaTensor : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kQueryLengths, kKeyLengths };
using SdpaPointers = std::unordered_map<int64_t, void*>;

}  // namespace octavo::cuda
