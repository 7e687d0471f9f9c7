// Token embedding (Llama, arXiv 2302.13971): out[t] = table[ids[t]].
//
// With vocabulary parallelism (Megatron-LM, arXiv 1909.08053, section 3) a rank has only the rows of the table for the
// ids [vocab_begin, vocab_begin + rows). Forward writes zeros for tokens with other ids, so the sum of `out` over the
// ranks is the whole result. Backward skips these tokens.
//
// Compute dtype is float32 or bfloat16. All work is queued on `stream`. Forward and backward are bitwise deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct EmbeddingForward {
  Tensor out;    // = [tokens, hidden], compute dtype
  Tensor ids;    // [tokens] int32, in the whole vocabulary
  Tensor table;  // [rows, hidden], compute dtype
  int64_t vocab_begin = 0;
  // Approximate share of the tokens whose ids have a row in `table`. The bytes in the profile depend on it, and the op
  // is named embedding_part_* if it is less than 1.
  double share = 1;
};
void embedding_forward(const EmbeddingForward& args, Stream& stream);

// Computes d_table[ids[t] - vocab_begin] += d_out[t], summed in float32 in the order of `order`.
struct EmbeddingBackward {
  Tensor d_table;  // += [rows, hidden] float32
  Tensor d_out;    // [tokens, hidden], compute dtype
  Tensor ids;      // [tokens] int32
  Tensor order;    // [tokens] int32: the positions 0..tokens-1 sorted by id, positions of equal ids in ascending order
  int64_t vocab_begin = 0;
  double share = 1;  // as in forward
};
void embedding_backward(const EmbeddingBackward& args, Stream& stream);

}  // namespace octavo
