// The head: final norm, lm_head and cross entropy, forward and backward, in chunks of tokens, so that the logits of a
// micro-batch never exist as a whole. model/lm_head.h multiplies by the weight of lm_head.
//
// Under tensor parallelism each rank computes the logits of its part of the vocabulary for all tokens, and the final
// norm of its share of the tokens. For the softmax the ranks exchange three numbers per token.
#pragma once

#include "model/block/block_half.h"
#include "model/lm_head.h"
#include "model/parameters/parameters.h"

namespace octavo {

// Views of the head's weights, or of their gradients. A tied model's lm_head is the embedding table.
struct HeadParameters {
  HeadParameters() = default;  // Constructs empty views for a stage without a head.
  HeadParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config);

  Tensor norm;     // [hidden]
  Tensor lm_head;  // [vocab, hidden], this rank's part of the vocabulary.
};

struct HeadActivations {
  // `losses` is the memory that the losses are written to.
  HeadActivations(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision, bool training,
                  const Tensor& losses, Arena& arena);

  Tensor h;     // [share, hidden]: residual stream after the last block.
  Tensor rstd;  // [share] float32
  Tensor norm;  // [share, hidden]
  // [tokens, hidden]: input of lm_head, equal to norm on one rank. Backward overwrites it with its gradient.
  Tensor all_norm;
  Tensor losses;  // [tokens] float32
  Tensor logits;  // [chunk, vocab]. Backward overwrites them with their gradients.
  // Statistics of the softmax if the vocabulary is divided over ranks.
  Tensor stats;      // [chunk * 3] float32, from the logits of this rank.
  Tensor all_stats;  // [ranks * chunk * 3] float32, from all ranks.
  LmHead lm_head;
};

// Computes activations.h = residual + delta and activations.norm = RMSNorm(activations.h).
void head_norm_forward(const BlockContext& context, const HeadParameters& weights, const Tensor& residual,
                       const Tensor& delta, const HeadActivations& activations);

// Computes the losses of all tokens without gradients. A target [tokens] int32 of -1 is ignored and its loss is 0.
void head_loss(const BlockContext& context, const HeadParameters& weights, const Tensor& targets,
               HeadActivations& activations);

// Returns the logits [1, vocab] of a token, in activations.logits. They are computed in the compute dtype, whatever
// precision.lm_head says. Requires a single tensor-parallel rank.
Tensor head_logits(const BlockContext& context, const HeadParameters& weights, const HeadActivations& activations,
                   int64_t token);

// Computes the losses and the gradients of scale * sum(losses + z-losses) through lm_head and the final norm. d_h is
// the gradient of the residual stream. The gradient of lm_head is written with =, or with += when accumulating. The
// gradient of the norm's weight is always added.
struct HeadBackward {
  const HeadParameters& weights;
  const HeadParameters& gradients;
  HeadActivations& activations;
  Tensor targets;
  Tensor d_h;
  Tensor d_h_amax;  // Optional [1] float32: = max(old value, max |d_h|).
  float scale = 1;
  bool accumulate = false;
  float z_loss = 0;      // Coefficient of the z-loss (kernels/layers/cross_entropy.h).
  Tensor z_losses = {};  // Optional = [tokens] float32.
};
void head_loss_backward(const BlockContext& context, const HeadBackward& args);

int64_t head_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                             Stream& stream);

}  // namespace octavo
