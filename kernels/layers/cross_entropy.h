// Cross entropy of next-token logits, forward and backward in one op over a chunk of tokens, with the z-loss, which
// keeps the normalizer of the logits near 1 (PaLM, arXiv 2204.02311, section 5):
//
//   loss[t] = logsumexp(logits[t]) - logits[t][target[t]]
//   z_losses[t] = z_loss * logsumexp(logits[t])^2
//   d_logits[t][v] = scale * ((1 + 2 z_loss logsumexp(logits[t])) softmax(logits[t])[v] - (v == target[t])),
//
// the gradient of scale * (loss + z_losses). The losses and gradients of a token with target -1 are zero. Arithmetic is
// float32. A NaN or +infinity among the logits makes the loss NaN. A logit of -infinity has probability and gradient
// zero. Queued on `stream`; deterministic.
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
  // Optional, replaces d_logits, whose content is then undefined. The cast has only `rows`, and its scale comes from
  // `bound`.
  Fp8Cast cast = {};
};
void cross_entropy(const CrossEntropy& args, Stream& stream);

// Sets the logits of the padding, the columns from `vocab` on, to -infinity. So the ops of cross entropy give them
// probability and gradient zero.
struct MaskPadding {
  Tensor logits;      // [tokens, columns], compute dtype
  int64_t vocab = 0;  // at most the number of columns; 0 masks all
};
void mask_padding(const MaskPadding& args, Stream& stream);

// Returns an upper bound of |d_logits| without reading the logits, since softmax minus one-hot is in [-1, 1]. The
// z-loss multiplies the softmax by 1 + 2 z_loss logsumexp, which has no bound of its own. The result is a bound while
// |logsumexp| <= kBoundedLogSumExp. In a new model logsumexp is about log(vocab), and the z-loss keeps it near 0.
constexpr float kBoundedLogSumExp = 1000;
constexpr float cross_entropy_gradient_bound(float scale, float z_loss) {
  return scale * (1 + 2 * z_loss * kBoundedLogSumExp);
}

}  // namespace octavo
