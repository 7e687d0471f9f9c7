#include "model/block/attention.h"

#include <algorithm>

#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "model/architecture/block_spec.h"

namespace octavo {

AttentionActivations::AttentionActivations(const ModelConfig& config, const BatchShape& shape,
                                           const ActivationMemory& memory) {
  const int64_t tokens = shape.tokens();
  const int64_t local_tokens = shape.local_tokens();
  const DType compute = memory.compute;
  norm.h = memory.get(Activation::kBlockInput, "h0", compute, {local_tokens, config.hidden_size});
  norm.rstd = memory.get(Activation::kOutput, "rstd1", DType::kFloat32, {local_tokens});
  norm.out = memory.norm("norm1", "qkv", {local_tokens, config.hidden_size});
  projected = memory.get(Activation::kOutput, "qkv", compute, {tokens, config.qkv_width()});
  qkv = config.qk_norm ? memory.get(Activation::kRotated, "rotated qkv", compute, {tokens, config.qkv_width()})
                       : projected;
  // The gradient of qkv may overwrite `projected`, which backward no longer needs at that time.
  norm.linear = memory.of_linear(
      "qkv", {.x = memory.norm_if_kept(norm.out), .d_y = memory.if_kept(Activation::kOutput, projected)});
  attention = memory.get(Activation::kOutput, "attention", compute, {tokens, config.attention_width()});
  const int64_t chunks = shape.context.chunks();
  lse = memory.get(Activation::kOutput, "lse", DType::kFloat32,
                   {chunks * shape.micro_batch_size, config.num_heads, shape.seq_len / chunks});
  o = memory.of_linear("o", {.x = memory.if_kept(Activation::kOutput, attention), .d_y = {}});
  recomputes_rotation =
      config.qk_norm && memory.recompute && made_in(Activation::kRotated, *memory.recompute) == BlockPass::kBackward;
}

AttentionScratch::AttentionScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients,
                                   Arena& arena) {
  const auto allocate = [&](const char* name, int64_t rows, int64_t columns) {
    return arena.allocate(name, compute, {rows, columns}, Lifetime::kBlock);
  };
  if (shape.context.size > 1) {
    const int64_t width = sdpa_shape(config, shape).kv_width();
    const int64_t tokens = shape.tokens() * shape.context.size;
    context = ContextScratch(shape.context, shape.tokens(), width, compute, arena);
    kv = allocate("keys and values of whole sequences", tokens, width);
    if (gradients) d_kv = allocate("gradient of keys and values of whole sequences", tokens, width);
  }
  if (!gradients) return;
  d_qkv = allocate("gradient of qkv", shape.tokens(), config.qkv_width());
  d_attention = allocate("gradient of attention", shape.tokens(), config.attention_width());
}

QkNormParameters::QkNormParameters(const SublayerParts& parts) {
  if (!parts.config.qk_norm) return;
  q_weight = parts.weight(kQueryNorm);
  k_weight = parts.weight(kKeyNorm);
  d_q_weight = parts.gradient(kQueryNorm);
  d_k_weight = parts.gradient(kKeyNorm);
}

Attention::Attention(const SublayerParts& parts, const AttentionScratch& scratch)
    : norm_(parts, kAttentionNorm),
      qkv_(parts.linear("qkv")),
      o_(parts.linear("o")),
      qk_norm_(parts),
      scratch_(scratch) {}

void Attention::forward(const BlockContext& c, const AttentionActivations& a, const Tensor& residual,
                        const Tensor& delta, BlockPass pass) const {
  norm_.forward(c, a.norm, residual.defined() ? delta : a.norm.h, residual, qkv_, pass);
  qkv_.forward(a.norm.linear, {.y = a.projected, .x = a.norm.out, .pass = pass}, c.stream);
  rotate(c, a);
  observe(c.observer, {.op = c.config.qk_norm ? "qk_norm_rope_forward" : "rope_forward",
                       .results = {a.qkv},
                       .inputs = {a.projected},
                       .weights = {qk_norm_.q_weight, qk_norm_.k_weight}});
  attend(c, a);
  observe(c.observer, {.op = "sdpa_forward", .results = {a.attention}, .inputs = {a.qkv}});
  o_.forward(a.o, {.y = delta, .x = a.attention, .pass = pass}, c.stream);
}

void Attention::rotate(const BlockContext& c, const AttentionActivations& a) const {
  const ModelConfig& model = c.config;
  if (!model.qk_norm) {
    return rope({.qkv = a.qkv, .table = c.rope_table, .num_heads = model.num_heads, .num_kv_heads = model.num_kv_heads},
                c.stream);
  }
  qk_norm_rope_forward({.out = a.qkv,
                        .qkv = a.projected,
                        .table = c.rope_table,
                        .q_weight = qk_norm_.q_weight,
                        .k_weight = qk_norm_.k_weight,
                        .num_heads = model.num_heads,
                        .num_kv_heads = model.num_kv_heads,
                        .eps = static_cast<float>(model.rms_norm_eps)},
                       c.stream);
}

// Replaces the gradient of `qkv` with the gradient of `projected`, or writes the cast of the gradient of `projected`.
void Attention::rotate_backward(const BlockContext& c, const AttentionActivations& a) const {
  const ModelConfig& model = c.config;
  const ProducerWork work = qkv_.gradient_work(a.norm.linear);
  if (!model.qk_norm) {
    return rope({.qkv = scratch_.d_qkv,
                 .table = c.rope_table,
                 .num_heads = model.num_heads,
                 .num_kv_heads = model.num_kv_heads,
                 .inverse = true,
                 .amax = work.amax,
                 .cast = work.cast},
                c.stream);
  }
  qk_norm_rope_backward({.d_qkv = scratch_.d_qkv,
                         .d_q_weight = qk_norm_.d_q_weight,
                         .d_k_weight = qk_norm_.d_k_weight,
                         .qkv = a.projected,
                         .table = c.rope_table,
                         .q_weight = qk_norm_.q_weight,
                         .k_weight = qk_norm_.k_weight,
                         .num_heads = model.num_heads,
                         .num_kv_heads = model.num_kv_heads,
                         .eps = static_cast<float>(model.rms_norm_eps),
                         .amax = work.amax,
                         .cast = work.cast},
                        c.stream);
}

void Attention::attend(const BlockContext& c, const AttentionActivations& a) const {
  if (!c.sequences.alone()) {
    start_gather_keys(c, a);
    c.sequences.wait();
  }
  sdpa_forward({.shape = c.attention,
                .out = a.attention,
                .lse = a.lse,
                .qkv = a.qkv,
                .kv = scratch_.kv,
                .documents = c.documents},
               c.stream);
}

// Gathers the columns of k and v, which follow the columns of q.
void Attention::start_gather_keys(const BlockContext& c, const AttentionActivations& a) const {
  c.sequences.start_gather(scratch_.kv, {a.qkv, c.attention.out_width()}, c.attention.batch, scratch_.context,
                           "keys and values");
}

void Attention::attend_backward(const BlockContext& c, const AttentionActivations& a) const {
  if (!c.sequences.alone()) c.sequences.wait();
  sdpa_backward({.shape = c.attention,
                 .d_qkv = scratch_.d_qkv,
                 .d_kv = scratch_.d_kv,
                 .d_out = scratch_.d_attention,
                 .out = a.attention,
                 .lse = a.lse,
                 .qkv = a.qkv,
                 .kv = scratch_.kv,
                 .documents = c.documents},
                c.stream);
  if (c.sequences.alone()) return;
  c.sequences.start_reduce_scatter({scratch_.d_qkv, c.attention.out_width()}, scratch_.d_kv, c.attention.batch,
                                   scratch_.context, "gradients of keys and values");
}

void Attention::start_backward(const BlockContext& c, const AttentionActivations& a) const {
  if (a.recomputes_rotation) rotate(c, a);
  if (!c.sequences.alone()) start_gather_keys(c, a);
}

// The gradients of keys and values are summed over ranks while the weight gradient of o is computed. The input of a
// linear is recomputed before its output gradient is computed, because both may be cast into the same LinearScratch.
void Attention::backward(const BlockContext& c, const AttentionActivations& a, const SublayerBackward& args) const {
  const Tensor& d_attention = scratch_.d_attention;
  o_.recompute_input(a.o, a.attention, c.stream);
  o_.backward(a.o,
              {.d_x = d_attention,
               .d_y = args.d_h,
               .x = a.attention,
               .weight_gradient = args.weight_gradient,
               .between = [&] { attend_backward(c, a); }},
              c.stream);
  norm_.recompute_input(c, a.norm, qkv_);
  if (!c.sequences.alone()) c.sequences.wait();
  const Tensor& d_qkv = scratch_.d_qkv;
  observe(c.observer, {.op = "sdpa_backward", .results = {d_qkv}, .inputs = {d_attention, a.qkv}});
  rotate_backward(c, a);
  observe(c.observer, {.op = c.config.qk_norm ? "qk_norm_rope_backward" : "rope_backward",
                       .results = {d_qkv, qk_norm_.d_q_weight, qk_norm_.d_k_weight},
                       .inputs = {d_qkv},
                       .weights = {qk_norm_.q_weight, qk_norm_.k_weight}});
  qkv_.backward(a.norm.linear,
                {.d_x = args.d_norm, .d_y = d_qkv, .x = a.norm.out, .weight_gradient = args.weight_gradient}, c.stream);
  norm_.backward(c, a.norm, args);
}

void Attention::backward_weights(const AttentionActivations& a, bool accumulate, Stream& stream) const {
  o_.backward_weights(a.o, accumulate, stream);
  qkv_.backward_weights(a.norm.linear, accumulate, stream);
}

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape) {
  return {shape.micro_batch_size, shape.seq_len, config.num_heads, config.num_kv_heads, config.head_dim, shape.context};
}

int64_t attention_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream) {
  const int64_t norm = config.qk_norm ? qk_norm_rope_backward_workspace_bytes(config.head_dim, stream) : 0;
  return std::max(norm, sdpa_workspace_bytes(sdpa_shape(config, shape), compute, stream, shape.document_mask));
}

}  // namespace octavo
