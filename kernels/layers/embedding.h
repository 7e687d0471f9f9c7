// Token embedding (Llama, arXiv 2302.13971): out[t] = table[ids[t]].
//
// A rank of vocabulary-parallel ones (Megatron-LM, arXiv 1909.08053, section 3) has the table's rows of the entries
// [vocab_begin, vocab_begin + rows) only. Other entries' rows of `out` are zeros, so that the ranks' sum is the whole,
// and they add nothing to its d_table.
//
// Compute dtype is float32 or bfloat16. All work is queued on `stream`; both directions are bitwise deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct EmbeddingForward {
  Tensor out;    // = [tokens, hidden], compute dtype
  Tensor ids;    // [tokens] int32, each in the whole vocabulary
  Tensor table;  // [rows, hidden], compute dtype
  int64_t vocab_begin = 0;
  double share = 1;  // of the tokens that have a row here, about; for the profile, which calls a part embedding_part_*
};
void embedding_forward(const EmbeddingForward& args, Stream& stream);

// d_table[ids[t] - vocab_begin] += d_out[t], summed in float32 in the order of `order`.
struct EmbeddingBackward {
  Tensor d_table;  // += [rows, hidden] float32
  Tensor d_out;    // [tokens, hidden], compute dtype
  Tensor ids;      // [tokens] int32
  Tensor order;    // [tokens] int32: the positions 0..tokens-1 sorted by id, equal ids in rising order
  int64_t vocab_begin = 0;
  double share = 1;  // as in forward
};
void embedding_backward(const EmbeddingBackward& args, Stream& stream);

}  // namespace octavo
