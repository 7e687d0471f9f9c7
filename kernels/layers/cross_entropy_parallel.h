// Cross entropy of next-token logits whose vocabulary is split over tensor-parallel ranks (Megatron-LM, arXiv
// 1909.08053, section 3), in two ops with an all-gather of 12 bytes per token between them:
//
//   cross_entropy_stats of the rank's logits -> all-gather of the stats in rank order -> cross_entropy_parallel
//
//   loss[t] = logsumexp(logits[t] of all ranks) - logits[t][target[t]]
//   z_losses[t] = z_loss * logsumexp(logits[t] of all ranks)^2
//   d_logits[t][v] = scale * ((1 + 2 z_loss logsumexp) softmax(logits[t] of all ranks)[v] - (v == target[t])), for the
//                    rank's v
//
// which equals cross_entropy (kernels/layers/cross_entropy.h) of the whole rows up to rounding. A rank has the logits
// of the entries [vocab_begin, vocab_begin + vocab) of the vocabulary, and `vocab` may differ between ranks. The losses
// and gradients of a token with target -1 are zero. Arithmetic is float32. A NaN or +infinity among the logits of any
// rank makes the loss NaN. A logit of -infinity has probability and gradient zero, even if all logits of a rank are
// -infinity, as those of padding (mask_padding). Queued on `stream`; deterministic; wrong shapes throw.
#pragma once

#include "core/stream.h"

namespace octavo {

constexpr int64_t kCrossEntropyStats = 3;  // number of stats per token and rank

struct CrossEntropyStats {
  // = [tokens, 3] float32: the largest logit (finite even if all logits are -infinity), the sum of e^(logit - largest),
  // and the target's logit, or 0 if another rank has it. All three are 0 if the target is -1.
  Tensor stats;
  Tensor logits;            // [tokens, vocab], compute dtype (float32 or bfloat16)
  Tensor targets;           // [tokens] int32, in the whole vocabulary
  int64_t vocab_begin = 0;  // vocabulary entry of the first column
};
void cross_entropy_stats(const CrossEntropyStats& args, Stream& stream);

struct CrossEntropyParallel {
  Tensor losses;    // = [tokens] float32, the same bits on every rank
  Tensor d_logits;  // optional = [tokens, vocab], compute dtype; may alias logits
  Tensor logits;    // [tokens, vocab], the input of cross_entropy_stats
  Tensor targets;   // [tokens] int32
  Tensor stats;     // [ranks, tokens, 3] float32, the gathered CrossEntropyStats::stats of all ranks
  int64_t vocab_begin = 0;
  float scale = 1;  // usually 1 / tokens of the global batch
  float z_loss = 0;
  Tensor z_losses = {};  // optional = [tokens] float32, the same bits on every rank
};
void cross_entropy_parallel(const CrossEntropyParallel& args, Stream& stream);

}  // namespace octavo
