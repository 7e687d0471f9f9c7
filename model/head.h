// The head: final norm, lm_head and cross entropy, forward and backward, in chunks of tokens, so that the logits of a
// micro-batch never exist whole.
//
// Under tensor parallelism each rank has the logits of its part of the vocabulary for all tokens, and the final norm of
// its share of the tokens; the softmax needs three numbers a token from every rank.
//
// lm_head's products may be in FP8 (model/fp8_head.h), but for head_logits, which is in the compute dtype.
#pragma once

#include <optional>

#include "model/block/block_half.h"
#include "model/fp8_head.h"
#include "model/parameters/parameters.h"

namespace octavo {

// Views of the head's weights, or of their gradients. A tied model's lm_head is the embedding table.
struct HeadParameters {
  HeadParameters() = default;  // of a stage without a head
  HeadParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config);

  Tensor norm;     // [hidden]
  Tensor lm_head;  // [vocab, hidden], of this rank
};

struct HeadActivations {
  // `losses`: where they go.
  HeadActivations(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision, bool training,
                  const Tensor& losses, Arena& arena);

  Tensor h;          // [share, hidden] the residual stream after the last block
  Tensor rstd;       // [share] float32
  Tensor norm;       // [share, hidden]
  Tensor all_norm;   // [tokens, hidden] input of lm_head, norm where a rank is alone; backward overwrites it with its
                     // gradient
  Tensor losses;     // [tokens] float32
  Tensor logits;     // [chunk, vocab]; training turns them into their gradient in place
  Tensor stats;      // [chunk * 3] float32 of this rank's logits, where there are several ranks
  Tensor all_stats;  // [ranks * chunk * 3] of all ranks'
  std::optional<Fp8Head> fp8;
};

// Final norm: activations.h = residual + delta, activations.norm = its norm.
void head_norm_forward(const BlockContext& context, const HeadParameters& weights, const Tensor& residual,
                       const Tensor& delta, const HeadActivations& activations);

// Losses of all tokens, no gradients. targets [tokens] int32, -1: ignored, loss 0.
void head_loss(const BlockContext& context, const HeadParameters& weights, const Tensor& targets,
               HeadActivations& activations);

// Logits [end - begin, vocab] of the tokens [begin, end), no more than a chunk, in activations.logits. For a rank that
// is alone.
Tensor head_logits(const BlockContext& context, const HeadParameters& weights, const HeadActivations& activations,
                   int64_t begin, int64_t end);

// Losses, and backward through lm_head and the final norm: d_h = the gradient of the residual stream of
// scale * sum(losses + z-losses). lm_head's gradient is written with =, or += when accumulating; the norm's is always
// +=.
struct HeadBackward {
  const HeadParameters& weights;
  const HeadParameters& gradients;
  HeadActivations& activations;
  Tensor targets;
  Tensor d_h;
  Tensor d_h_amax;  // optional [1] float32: = max(itself, max |d_h|)
  float scale = 1;
  bool accumulate = false;
  float z_loss = 0;      // CrossEntropy
  Tensor z_losses = {};  // optional = [tokens] float32
};
void head_loss_backward(const BlockContext& context, const HeadBackward& args);

int64_t head_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                             Stream& stream);

}  // namespace octavo
