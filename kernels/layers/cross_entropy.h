// Cross entropy of next-token logits, forward and backward in one op over a chunk of tokens, and beside it the z-loss,
// which keeps the logits' normalizer near 1 (PaLM, arXiv 2204.02311, section 5):
//
//   loss[t] = logsumexp(logits[t]) - logits[t][target[t]]
//   z_losses[t] = z_loss * logsumexp(logits[t])^2
//   d_logits[t][v] = scale * ((1 + 2 z_loss logsumexp(logits[t])) softmax(logits[t])[v] - (v == target[t])),
//
// the gradient of scale * (loss + z_losses). A target of -1 is ignored: its losses and gradients are zero. Arithmetic
// is float32; logits beyond `vocab` columns do not exist (no padding). A NaN or +infinity among the logits gives a NaN
// loss. Queued on `stream`; deterministic.
#pragma once

#include "kernels/fp8/fp8.h"

namespace octavo {

struct CrossEntropy {
  Tensor losses;    // = [tokens] float32
  Tensor d_logits;  // optional = [tokens, vocab], compute dtype; may alias logits
  Tensor logits;    // [tokens, vocab], compute dtype (float32 or bfloat16)
  Tensor targets;   // [tokens] int32
  float scale = 1;  // usually 1 / tokens of the global batch
  float z_loss = 0;
  Tensor z_losses = {};  // optional = [tokens] float32
  // Optional, in place of d_logits, which then holds nothing: rows alone, of a bound. They have the bits that quantize
  // would make of it.
  Fp8Cast cast = {};
};
void cross_entropy(const CrossEntropy& args, Stream& stream);

// What |d_logits| does not exceed, known without looking at them: softmax minus one-hot is in [-1, 1]. The z-loss
// multiplies the softmax by 1 + 2 z_loss logsumexp, for which no bound is known beforehand: this one holds while
// |logsumexp| is at most kBoundedLogSumExp, where it is some log(vocab) in a new model and the z-loss keeps it near 0.
constexpr float kBoundedLogSumExp = 1000;
constexpr float cross_entropy_gradient_bound(float scale, float z_loss) {
  return scale * (1 + 2 * z_loss * kBoundedLogSumExp);
}

}  // namespace octavo
