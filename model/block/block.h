// One transformer block of Llama (arXiv 2302.13971, 2407.21783), forward and backward:
//
//   h0 = residual + delta                      what the previous block left
//   h1 = h0 + o(attention(rope(qkv(norm1(h0)))))
//   out = h1 + down(swiglu(gate_up(norm2(h1))))
//
// The last addition is left to the next norm, which fuses it: a block hands on h1 as `residual` and the down product as
// `delta`. Queued on the stream of the context. A block holds its weights and its recipe; the activations of a
// micro-batch are passed to forward and backward.
//
// Under tensor parallelism a rank has its heads and its part of the intermediate width (`config` is then its
// local_config), and between the linears its share of the tokens, [share]; alone the share is all tokens.
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

// What lives within one block's forward, or its backward; all blocks share it.
struct BlockScratch {
  // Without `gradients`, for forward alone.
  BlockScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  MlpScratch mlp;
  Tensor d_norm;  // [share, hidden]
  std::optional<AttentionScratch> attention;
};

class Block {
 public:
  Block(const HalfParts& parts, const BlockScratch& scratch);

  // `residual` [share, hidden]; undefined in the first block: a.h0() holds the input. `delta` [share, hidden]: in, what
  // to add to the residual; out, the down product.
  void forward(const BlockContext& context, const BlockActivations& a, const Tensor& residual,
               const Tensor& delta) const;
  // Makes the activations up to gate_up of a.h0(), in the backward of a block that is recomputed.
  void forward_again(const BlockContext& context, const BlockActivations& a) const;
  // `d_h` [share, hidden]: in, the gradient of the block's output; out, of its input, whose amax goes to `d_h_amax`
  // (optional [1]) for the block before. Products write the weight gradients with =, or += when accumulating; norm
  // gradients are always +=. It makes the inputs of linears that ask for it again on the way; forward_again, before,
  // what else is not there.
  void backward(const BlockContext& context, const BlockActivations& a, const Tensor& d_h, const Tensor& d_h_amax,
                WeightGradient weight_gradient) const;
  // Computes the weight gradients of which backward has saved the operands (WeightGradient::kSave).
  void backward_weights(const BlockActivations& a, bool accumulate, Stream& stream) const;

  Tensor output_gradient_amax(const BlockActivations& a) const { return mlp_.output_gradient_amax(a.mlp); }
  const Tensor& qkv_gradient() const { return attention_.qkv_gradient(); }  // of the weight

 private:
  Attention attention_;
  Mlp mlp_;
  Tensor d_norm_;
};

// Scratch of the block's ops.
int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                              Stream& stream);

}  // namespace octavo
