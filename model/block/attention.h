// The attention half of a block:
//
//   delta = o(attention(rope(qkv(norm(h)))))
//
// With ModelConfig::qk_norm, each query and key head is normalized before it is rotated.
#pragma once

#include "kernels/attention/sdpa.h"
#include "model/block/block_half.h"

namespace octavo {

// What forward saves for backward.
struct AttentionActivations {
  AttentionActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h0, norm.linear is of qkv
  Tensor projected;      // [tokens, qkv_width] the qkv product; the same memory as `qkv` unless qk_norm is true
  Tensor qkv;            // [tokens, qkv_width] rotated
  Tensor attention;      // [tokens, heads * head_dim] input of o
  Tensor lse;            // [chunks * batch, heads, seq_len / chunks] float32, of one chunk on one rank
  LinearActivations o;
  bool recomputes_rotation = false;  // whether backward makes `qkv` again from `projected`
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

// The weights of qk-norm and their gradients, [head_dim]. Undefined without qk-norm.
struct QkNormParameters {
  explicit QkNormParameters(const HalfParts& parts);

  Tensor q_weight, k_weight;      // compute dtype
  Tensor d_q_weight, d_k_weight;  // float32; undefined in inference
};

// With a cache (HalfParts) a forward continues the sequences that it holds, and adds its own tokens to them.
class Attention {
 public:
  Attention(const HalfParts& parts, const AttentionScratch& scratch);

  // `residual` undefined (the first block, and again): a.norm.h holds the input. `delta` [share, hidden]: in, what to
  // add to the residual; out, the o product.
  void forward(const BlockContext& context, const AttentionActivations& a, const Tensor& residual, const Tensor& delta,
               BlockPass pass) const;
  void backward(const BlockContext& context, const AttentionActivations& a, const HalfBackward& args) const;
  // Computes the weight gradients of which backward has saved the operands (WeightGradient::kSave).
  void backward_weights(const AttentionActivations& a, bool accumulate, Stream& stream) const;

  // Where the amax of the gradient of the half's output goes; see LinearLayer.
  Tensor output_gradient_amax(const AttentionActivations& a) const { return o_.gradient_target(a.o).amax; }
  const Tensor& qkv_gradient() const { return qkv_.gradient(); }  // of the weight

 private:
  void rotate(const BlockContext& context, const AttentionActivations& a) const;
  void rotate_backward(const BlockContext& context, const AttentionActivations& a) const;
  void attend(const BlockContext& context, const AttentionActivations& a) const;
  void attend_backward(const BlockContext& context, const AttentionActivations& a) const;
  void gather_keys(const BlockContext& context, const AttentionActivations& a) const;

  HalfNorm norm_;
  LinearLayer qkv_, o_;
  QkNormParameters qk_norm_;
  SdpaCache cache_;
  AttentionScratch scratch_;
};

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape);

// Scratch of its ops, besides those of the norm and the linears.
int64_t attention_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream);

}  // namespace octavo
