// The attention sublayer of a block:
//
//   delta = o(attention(rope(qkv(norm(h)))))
//
// With ModelConfig::qk_norm, each query and key head is normalized before it is rotated.
#pragma once

#include "kernels/attention/sdpa.h"
#include "model/block/sublayer.h"

namespace octavo {

// Activations that backward reads.
struct AttentionActivations {
  AttentionActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h0. norm.linear belongs to qkv.
  Tensor projected;      // [tokens, qkv_width] output of the qkv linear. The same memory as `qkv` without qk_norm.
  Tensor qkv;            // [tokens, qkv_width] with queries and keys after qk-norm and rope
  Tensor attention;      // [tokens, heads * head_dim] input of o
  Tensor lse;  // [chunks * batch, heads, seq_len / chunks] float32 log-sum-exp. Whole sequences are one chunk.
  LinearActivations o;
  bool recomputes_rotation = false;  // Whether backward computes `qkv` again from `projected`.
};

// Memory that is used within one forward or backward. All blocks share it.
struct AttentionScratch {
  // `gradients`: whether there is a backward.
  AttentionScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  Tensor d_qkv;        // [tokens, qkv_width]
  Tensor d_attention;  // [tokens, heads * head_dim]
  // [batch * whole_seq_len, kv_width] keys and values of whole sequences, if ranks share the sequences
  // (kernels/attention/sdpa.h). They are gathered in forward and again in backward, because saving them for every layer
  // would take more memory than all other activations.
  Tensor kv, d_kv;
  ContextScratch context;  // buffers for their transfers
};

// The weights of qk-norm and their gradients, [head_dim]. Undefined without qk-norm.
struct QkNormParameters {
  explicit QkNormParameters(const SublayerParts& parts);

  Tensor q_weight, k_weight;      // compute dtype
  Tensor d_q_weight, d_k_weight;  // float32; undefined in inference
};

class Attention {
 public:
  Attention(const SublayerParts& parts, const AttentionScratch& scratch);

  // `residual` [local_tokens, hidden]. If it is undefined, as in the first block and in recomputation, a.norm.h holds
  // the input. `delta` [local_tokens, hidden] is added to the residual, and is then overwritten with the output of o.
  void forward(const BlockContext& context, const AttentionActivations& a, const Tensor& residual, const Tensor& delta,
               BlockPass pass) const;
  // Queues work that can overlap with the MLP's backward: computes `a.qkv` again if a.recomputes_rotation, and starts
  // the gather of keys and values. Called before the backward of a block that is not recomputed. In a recomputed block,
  // forward() has done both.
  void start_backward(const BlockContext& context, const AttentionActivations& a) const;
  void backward(const BlockContext& context, const AttentionActivations& a, const SublayerBackward& args) const;
  // Computes the weight gradients of the linears from operands that backward saved (WeightGradient::kSave).
  void backward_weights(const AttentionActivations& a, bool accumulate, Stream& stream) const;

  // Returns the slot for the amax of the gradient of the sublayer's output (LinearLayer::gradient_work).
  Tensor output_gradient_amax(const AttentionActivations& a) const { return o_.gradient_work(a.o).amax; }
  // Returns the gradient of the weight of qkv.
  const Tensor& qkv_gradient() const { return qkv_.gradient(); }

 private:
  void rotate(const BlockContext& context, const AttentionActivations& a) const;
  void rotate_backward(const BlockContext& context, const AttentionActivations& a) const;
  void attend(const BlockContext& context, const AttentionActivations& a) const;
  // Starts the sum of the gradients of keys and values over the ranks that share the sequences.
  void attend_backward(const BlockContext& context, const AttentionActivations& a) const;
  void start_gather_keys(const BlockContext& context, const AttentionActivations& a) const;

  SublayerNorm norm_;
  LinearLayer qkv_, o_;
  QkNormParameters qk_norm_;
  AttentionScratch scratch_;
};

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape);

// Returns the size of the workspace that the ops between the linears need.
int64_t attention_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream);

}  // namespace octavo
