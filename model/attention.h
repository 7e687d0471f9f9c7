// The attention half of a block:
//
//   delta = o(attention(rope(qkv(norm(h)))))
#pragma once

#include "kernels/attention/sdpa.h"
#include "model/block_half.h"

namespace octavo {

// What an attention half consists of, in the model of `config` or in a rank's local_config of it.
HalfSpec attention_spec(const ModelConfig& config, const BatchShape& shape);

// What forward saves for backward.
struct AttentionActivations {
  AttentionActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h0, norm.linear is of qkv
  Tensor qkv;            // [tokens, qkv_width] rotated
  Tensor attention;      // [tokens, heads * head_dim] input of o
  Tensor lse;            // [pieces * batch, heads, seq_len / pieces] float32, of one piece on one rank
  LinearActivations o;
};

// Keys and values of whole sequences, where ranks share them (kernels/attention/sdpa.h). They are gathered in
// forward and again in backward: kept for every layer they would be more than anything else that is.
struct SharedKeys {
  SharedKeys() = default;  // of a rank that has whole sequences
  SharedKeys(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  Tensor kv, d_kv;  // [batch * whole_seq_len, kv_width]
  ContextScratch scratch;
};

// What lives within one forward or backward; all blocks share it.
struct AttentionScratch {
  // Without `gradients`, for forward alone.
  AttentionScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  Tensor d_qkv;        // [tokens, qkv_width]
  Tensor d_attention;  // [tokens, heads * head_dim]
  SharedKeys shared;
};

// With a cache (HalfParts) a forward continues the sequences that it holds, and adds its own tokens to them.
class Attention {
 public:
  Attention(const HalfParts& parts, const AttentionScratch& scratch);

  // `residual` undefined (the first block, and again): a.norm.h holds the input. `delta` [share, hidden]: in, what to
  // add to the residual; out, the o product.
  void forward(const BlockContext& context, const AttentionActivations& a, const Tensor& residual, const Tensor& delta,
               ForwardPass pass) const;
  void backward(const BlockContext& context, const AttentionActivations& a, const HalfBackward& args) const;

  // Where the amax of the gradient of the half's output goes; see LinearLayer.
  Tensor output_gradient_amax(const AttentionActivations& a) const { return o_.gradient_amax(a.o); }
  const Tensor& qkv_gradient() const { return qkv_.gradient(); }  // of the weight

 private:
  void attend(const BlockContext& context, const AttentionActivations& a) const;
  void attend_backward(const BlockContext& context, const AttentionActivations& a) const;
  void gather_keys(const BlockContext& context, const AttentionActivations& a) const;

  HalfNorm norm_;
  LinearLayer qkv_, o_;
  SdpaCache cache_;
  AttentionScratch scratch_;
};

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape);

// Scratch of its ops, besides those of the norm and the linears.
int64_t attention_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream);

}  // namespace octavo
