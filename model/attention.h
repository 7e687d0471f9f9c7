// The attention half of a block:
//
//   delta = o(attention(rope(qkv(norm(h)))))
#pragma once

#include "model/block_half.h"

namespace octavo {

// What an attention half consists of, in the model of `config` or in a rank's local_config of it.
HalfSpec attention_spec(const ModelConfig& config, const BatchShape& shape);

// What forward saves for backward, besides what the linears keep of their inputs.
struct AttentionActivations {
  AttentionActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h0
  Tensor qkv;            // [tokens, qkv_width] rotated
  Tensor attention;      // [tokens, heads * head_dim] input of o
  Tensor lse;            // [batch, heads, seq_len] float32
};

// What lives within one backward; all blocks share it.
struct AttentionScratch {
  AttentionScratch() = default;  // for forward alone
  AttentionScratch(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena);

  Tensor d_qkv;        // [tokens, qkv_width]
  Tensor d_attention;  // [tokens, heads * head_dim]
};

// With a cache (HalfParts) a forward continues the sequences that it holds, and adds its own tokens to them.
class Attention {
 public:
  Attention(const HalfParts& parts, const AttentionActivations& activations, const AttentionScratch& scratch);

  // `residual` undefined (the first block, and again): activations.norm.h holds the input. `delta` [share, hidden]: in,
  // what to add to the residual; out, the o product.
  void forward(const BlockContext& context, const Tensor& residual, const Tensor& delta, ForwardPass pass);
  void backward(const BlockContext& context, const HalfBackward& args);

  // Where the amax of the gradient of the half's output goes; see LinearLayer.
  Tensor output_gradient_amax() const { return o_.gradient_amax(); }
  const Tensor& qkv_gradient() const { return qkv_.gradient(); }  // of the weight
  const AttentionActivations& activations() const { return activations_; }

 private:
  void attend(const BlockContext& context);

  HalfNorm norm_;
  LinearLayer qkv_, o_;
  SdpaCache cache_;
  AttentionActivations activations_;
  AttentionScratch scratch_;
};

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape);

// Scratch of its ops, besides those of the norm and the linears.
int64_t attention_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream);

}  // namespace octavo
