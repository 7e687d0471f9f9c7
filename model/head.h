// The head: final norm, lm_head and cross entropy, forward and backward, in chunks of tokens, so that the logits of a
// micro-batch never exist as a whole. LmHead multiplies by the weight of lm_head.
//
// Under tensor parallelism each rank computes the logits of its part of the vocabulary for all tokens, and the final
// norm of its share of the tokens. For the softmax the ranks exchange three numbers per token. Where a shape says
// `vocab`, the last rows or columns may be padding (ParameterSpec::padding_rows). Their logits are masked, so that
// their gradients are zero.
#pragma once

#include "model/block/sublayer.h"
#include "model/parameters/parameters.h"

namespace octavo {

// Views of the head's weights, or of their gradients. A tied model's lm_head is the embedding table.
struct HeadParameters {
  HeadParameters() = default;  // Constructs empty views for a stage without a head.
  HeadParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config);

  Tensor norm;     // [hidden]
  Tensor lm_head;  // [vocab, hidden], this rank's part of the vocabulary.
  // Rows of lm_head that are entries of the vocabulary. The rows after them are padding.
  int64_t vocab_size = 0;
};

// The three matmuls of lm_head, over one chunk of the tokens of a micro-batch at a time:
//
//   logits = x W^T        x [tokens, hidden] is the output of the final norm, W [vocab, hidden] the weight
//   d_W   += d_logits^T x
//   d_x    = d_logits W
//
// precision.lm_head decides which of them multiply in FP8, with one scale per tensor (fp8_tensorwise): all three with
// `fp8`, the last two with `fp8_backward`. The others multiply in the compute dtype, so `fp8_backward` gives the same
// logits and loss as `bfloat16`, bit for bit.
//
// x and W are cast to e4m3. The scale of x comes from the amax over all tokens of the micro-batch on all ranks that
// work on it, the scale of W from the amax over the whole weight. So neither scale depends on the chunks or on the
// mesh.
//
// The gradients of the logits are cast to the format of output gradients (PrecisionConfig::gradient_format). Their
// scale needs no amax, because the loss bounds them (cross_entropy_gradient_bound). The scale maps the bound to the
// format's largest number. Probabilities in the tail of the softmax are lost: gradients below half of the format's
// smallest number are rounded to zero.
//
//   e5m2  below 2^-17 / 57344 = 1.3e-10 of the bound   full precision above 1.1e-9 of the bound
//   e4m3  below 2^-10 / 448 = 2.2e-6 of the bound      full precision above 3.5e-5 of the bound
//
// The mean probability of a token is 7.8e-6 with a vocabulary of 128,256.
//
// Only a z-loss can make a gradient exceed the bound. Such gradients are clamped to it.
//
// Memory comes from the arena at construction, and each chunk overwrites it. Work is queued on the stream.
// Deterministic.
class LmHead {
 public:
  // Sizes of the matrices. FP8 requires multiples of 16.
  struct Shape {
    int64_t chunk;  // Maximum number of tokens per chunk.
    int64_t hidden;
    int64_t vocab;  // Entries of the vocabulary on this rank, and padding.
  };
  LmHead(const PrecisionConfig& precision, const Shape& shape, bool training, Arena& arena);

  // Begins the pass of a micro-batch. If the pass multiplies in FP8, measures x [all tokens, hidden] and `weight`, and
  // casts `weight`. `backward` says whether the pass computes gradients. Collective over `tensor` and `sequences`.
  // Requires: `weight` does not change until the pass ends.
  void begin(const Tensor& weight, const Tensor& x, bool backward, TensorGroup& tensor, const ContextGroup& sequences,
             Stream& stream);

  // logits [tokens, vocab] = x W^T, where x [tokens, hidden] holds the next chunk.
  void forward(const Tensor& logits, const Tensor& x, Stream& stream);

  // Returns where the kernel that computes the gradients of the chunk's logits may write their FP8 cast in place of the
  // gradients. `bound` is an upper bound of their absolute values. Undefined if the gradients are not multiplied in
  // FP8.
  Fp8Cast gradient_cast(float bound) const;

  struct Backward {
    Tensor d_weight;  // [vocab, hidden] float32, = or, with `accumulate`, +=
    Tensor x;         // [tokens, hidden], the input of forward for these tokens; overwritten with its gradient
    Tensor d_logits;  // [tokens, vocab] compute dtype; not read if `cast` is defined
    // gradient_cast() if the kernel that computed d_logits wrote it, otherwise undefined.
    Fp8Cast cast;
    float bound = 0;  // Upper bound of the magnitudes in d_logits.
    bool accumulate = false;
  };
  void backward(const Backward& args, Stream& stream);

 private:
  bool makes_fp8_logits() const { return traits(precision_.lm_head).logits; }
  bool makes_fp8_gradients() const { return backward_ && traits(precision_.lm_head).gradients; }
  bool uses_fp8() const { return makes_fp8_logits() || makes_fp8_gradients(); }
  bool fast(bool forward) const;
  void backward_fp8(const Backward& args, Stream& stream);

  PrecisionConfig precision_;
  Tensor input_amax_, weight_amax_;  // [1] float32
  Fp8Operand weight_rows_, weight_columns_;
  // Memory for a chunk. A smaller chunk uses the first part.
  Fp8Operand input_rows_, input_columns_;
  Fp8Operand gradient_rows_, gradient_columns_;
  Tensor weight_;          // Weight of lm_head in the current pass.
  bool backward_ = false;  // Whether the current pass computes gradients.
  int64_t tokens_ = 0;     // Number of tokens of the current chunk.
};

struct HeadActivations {
  // `losses` is the memory that the losses are written to. Below, `local_tokens` is shape.local_tokens().
  HeadActivations(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision, bool training,
                  const Tensor& losses, Arena& arena);

  Tensor h;     // [local_tokens, hidden]: residual stream after the last block.
  Tensor rstd;  // [local_tokens] float32
  Tensor norm;  // [local_tokens, hidden]
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

// Returns the logits [1, vocab_size] of a token, in activations.logits. The compute dtype is used, whatever
// precision.lm_head says.
// Requires: there is a single tensor-parallel rank.
Tensor head_logits(const BlockContext& context, const HeadParameters& weights, const HeadActivations& activations,
                   int64_t token);

// Arguments of head_loss_backward(), which computes the losses and the gradients of scale * sum(losses + z-losses)
// through lm_head and the final norm. d_h is the gradient of the residual stream. The gradient of lm_head is written
// with =, or with += when accumulating. The gradient of the norm's weight is always +=.
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
