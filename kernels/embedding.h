// Token embedding (Llama, arXiv 2302.13971): out[t] = table[ids[t]].
//
// Compute dtype is float32 or bfloat16. All work is queued on `stream`; both directions are bitwise deterministic.
#pragma once

#include "kernels/core/stream.h"

namespace octavo {

struct EmbeddingForward {
  Tensor out;    // = [tokens, hidden], compute dtype
  Tensor ids;    // [tokens] int32, each in [0, vocab)
  Tensor table;  // [vocab, hidden], compute dtype
};
void embedding_forward(const EmbeddingForward& args, Stream& stream);

// d_table[ids[t]] += d_out[t], summed in float32 in the order of `order`.
struct EmbeddingBackward {
  Tensor d_table;  // += [vocab, hidden] float32
  Tensor d_out;    // [tokens, hidden], compute dtype
  Tensor ids;      // [tokens] int32
  Tensor order;    // [tokens] int32: the positions 0..tokens-1 sorted by id, equal ids in rising order
};
void embedding_backward(const EmbeddingBackward& args, Stream& stream);

}  // namespace octavo
