// One transformer block of Llama (arXiv 2302.13971, 2407.21783), forward and backward:
//
//   h0 = residual + delta                      residual and delta are the outputs of the previous block
//   h1 = h0 + o(attention(rope(qkv(norm1(h0)))))
//   out = h1 + down(swiglu(gate_up(norm2(h1))))
//
// The next norm computes the sum `out`, because its kernel can fuse the addition. So the outputs of a block are h1 as
// `residual` and the output of down as `delta`. All work is queued on the stream of the context. A block holds its
// weights and its recipe. The activations of a micro-batch are passed to forward and backward.
//
// Under tensor parallelism `config` is the local_config of the rank, which has some of the heads and a part of the
// intermediate width. Between the linears a rank has its share of the tokens, which is all tokens without tensor
// parallelism.
#pragma once

#include <optional>

#include "model/block/attention.h"
#include "model/block/mlp.h"

namespace octavo {

struct BlockActivations {
  BlockActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory)
      : attention(config, shape, memory), mlp(config, shape, memory) {}

  const Tensor& h0() const { return attention.norm.h; }
  const Tensor& h1() const { return mlp.norm.h; }

  AttentionActivations attention;
  MlpActivations mlp;
};

// Memory that is used within the forward or backward of a block. All blocks share it.
struct BlockScratch {
  // `gradients`: whether there is a backward.
  BlockScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  Tensor swiglu;  // [tokens, intermediate]
  Tensor d_norm;  // [local_tokens, hidden]
  std::optional<AttentionScratch> attention;
};

class Block {
 public:
  Block(const SublayerParts& parts, const BlockScratch& scratch);

  // `residual` [local_tokens, hidden]. If it is undefined, as in the first block, a.h0() holds the input. `delta`
  // [local_tokens, hidden] is added to the residual, and is then overwritten with the output of down.
  void forward(const BlockContext& context, const BlockActivations& a, const Tensor& residual,
               const Tensor& delta) const;
  // Recomputes the activations up to gate_up from a.h0(). Called before the backward of a block that is recomputed.
  void forward_again(const BlockContext& context, const BlockActivations& a) const;
  // Starts the transfers that overlap with backward. Called before the backward of a block that is not recomputed.
  void start_backward(const BlockContext& context, const BlockActivations& a) const {
    attention_.start_backward(context, a.attention);
  }
  // `d_h` [local_tokens, hidden] is the gradient of the block's output, and is overwritten with the gradient of the
  // block's input. `d_h_amax` (optional [1]) takes the amax of the input's gradient, for the previous block. Gradients
  // of norms are always +=. Backward also recomputes the activations of BlockPass::kBackward.
  void backward(const BlockContext& context, const BlockActivations& a, const Tensor& d_h, const Tensor& d_h_amax,
                WeightGradient weight_gradient) const;
  // Computes the weight gradients of the linears from operands that backward saved (WeightGradient::kSave).
  void backward_weights(const BlockActivations& a, bool accumulate, Stream& stream) const;

  Tensor output_gradient_amax(const BlockActivations& a) const { return mlp_.output_gradient_amax(a.mlp); }
  // Returns the gradient of the weight of qkv.
  const Tensor& qkv_gradient() const { return attention_.qkv_gradient(); }

 private:
  Attention attention_;
  Mlp mlp_;
  Tensor d_norm_;
};

// Returns the size of the workspace that the ops of a block need.
int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                              Stream& stream);

}  // namespace octavo
