// Cross entropy of next-token logits, forward and backward in one op over a chunk of tokens:
//
//   loss[t] = logsumexp(logits[t]) - logits[t][target[t]]
//   d_logits[t][v] = scale * (softmax(logits[t])[v] - (v == target[t]))
//
// A target of -1 is ignored: its loss and gradients are zero. Arithmetic is float32; logits beyond `vocab` columns do
// not exist (no padding). A NaN or +infinity among the logits gives a NaN loss. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct CrossEntropy {
  Tensor losses;    // = [tokens] float32
  Tensor d_logits;  // optional = [tokens, vocab], compute dtype; may alias logits
  Tensor logits;    // [tokens, vocab], compute dtype (float32 or bfloat16)
  Tensor targets;   // [tokens] int32
  float scale = 1;  // usually 1 / tokens of the global batch
};
void cross_entropy(const CrossEntropy& args, Stream& stream);

}  // namespace octavo
