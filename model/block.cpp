#include "model/block.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "model/linear.h"

namespace octavo {

namespace {

Tensor packed_view(const Tensor& flat, const ParameterSpec& first, int64_t rows, int64_t columns) {
  return flat.rows(first.offset, first.offset + rows * columns).view({rows, columns});
}

}  // namespace

BlockParameters::BlockParameters(const Tensor& flat, const ParameterLayout& layout, const ModelConfig& config,
                                 int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto find = [&](const char* name) -> const ParameterSpec& { return layout.find(prefix + name); };
  const ParameterSpec& first = find("input_layernorm.weight");
  const ParameterSpec& q = find("self_attn.q_proj.weight");
  norms = flat.rows(first.offset, q.offset);
  norm1 = parameter_view(flat, first);
  norm2 = parameter_view(flat, find("post_attention_layernorm.weight"));
  qkv = packed_view(flat, q, config.qkv_width(), config.hidden_size);
  o = parameter_view(flat, find("self_attn.o_proj.weight"));
  gate_up = packed_view(flat, find("mlp.gate_proj.weight"), 2 * config.intermediate_size, config.hidden_size);
  down = parameter_view(flat, find("mlp.down_proj.weight"));
}

BlockActivations::BlockActivations(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena) {
  const int64_t tokens = shape.tokens();
  const int64_t hidden = config.hidden_size;
  h0 = arena.allocate("activations h0", compute, {tokens, hidden});
  rstd1 = arena.allocate("activations rstd1", DType::kFloat32, {tokens});
  norm1 = arena.allocate("activations norm1", compute, {tokens, hidden});
  qkv = arena.allocate("activations qkv", compute, {tokens, config.qkv_width()});
  attention = arena.allocate("activations attention", compute, {tokens, config.attention_width()});
  lse = arena.allocate("activations lse", DType::kFloat32, {shape.micro_batch_size, config.num_heads, shape.seq_len});
  h1 = arena.allocate("activations h1", compute, {tokens, hidden});
  rstd2 = arena.allocate("activations rstd2", DType::kFloat32, {tokens});
  norm2 = arena.allocate("activations norm2", compute, {tokens, hidden});
  gate_up = arena.allocate("activations gate_up", compute, {tokens, 2 * config.intermediate_size});
  swiglu = arena.allocate("activations swiglu", compute, {tokens, config.intermediate_size});
}

BlockGradients::BlockGradients(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena) {
  const int64_t tokens = shape.tokens();
  d_norm = arena.allocate("gradient of norm", compute, {tokens, config.hidden_size});
  d_qkv = arena.allocate("gradient of qkv", compute, {tokens, config.qkv_width()});
  d_attention = arena.allocate("gradient of attention", compute, {tokens, config.attention_width()});
  d_swiglu = arena.allocate("gradient of swiglu", compute, {tokens, config.intermediate_size});
}

void block_forward(const BlockContext& c, const BlockParameters& w, const Tensor& residual, const Tensor& delta,
                   const BlockActivations& a) {
  Stream& stream = c.stream;
  const auto eps = static_cast<float>(c.config.rms_norm_eps);

  rms_norm_forward({.out = a.norm1,
                    .rstd = a.rstd1,
                    .residual_out = a.h0,
                    .x = residual.defined() ? delta : a.h0,
                    .residual = residual,
                    .weight = w.norm1,
                    .eps = eps},
                   stream);
  linear_forward({.y = a.qkv, .x = a.norm1, .w = w.qkv, .name = "qkv"}, stream);
  rope({.qkv = a.qkv, .table = c.rope_table, .num_heads = c.config.num_heads, .num_kv_heads = c.config.num_kv_heads},
       stream);
  sdpa_forward(
      {.shape = c.attention, .out = a.attention, .lse = a.lse, .qkv = a.qkv, .document_start = c.document_start},
      stream);
  linear_forward({.y = delta, .x = a.attention, .w = w.o, .name = "o"}, stream);

  rms_norm_forward({.out = a.norm2,
                    .rstd = a.rstd2,
                    .residual_out = a.h1,
                    .x = delta,
                    .residual = a.h0,
                    .weight = w.norm2,
                    .eps = eps},
                   stream);
  linear_forward({.y = a.gate_up, .x = a.norm2, .w = w.gate_up, .name = "gate_up"}, stream);
  swiglu_forward({.out = a.swiglu, .gate_up = a.gate_up}, stream);
  linear_forward({.y = delta, .x = a.swiglu, .w = w.down, .name = "down"}, stream);
}

void block_backward(const BlockContext& c, const BlockParameters& w, const BlockParameters& g,
                    const BlockActivations& a, const BlockGradients& s, const Tensor& d_h, bool accumulate) {
  Stream& stream = c.stream;
  const Tensor& d_gate_up = a.gate_up;  // in place: the last reader of gate_up writes its gradient

  linear_backward({.d_x = s.d_swiglu,
                   .d_w = g.down,
                   .d_y = d_h,
                   .x = a.swiglu,
                   .w = w.down,
                   .accumulate = accumulate,
                   .input_name = "down_d_x",
                   .weight_name = "down_d_w"},
                  stream);
  swiglu_backward({.d_gate_up = d_gate_up, .d_out = s.d_swiglu, .gate_up = a.gate_up}, stream);
  linear_backward({.d_x = s.d_norm,
                   .d_w = g.gate_up,
                   .d_y = d_gate_up,
                   .x = a.norm2,
                   .w = w.gate_up,
                   .accumulate = accumulate,
                   .input_name = "gate_up_d_x",
                   .weight_name = "gate_up_d_w"},
                  stream);
  rms_norm_backward({.d_h = d_h,
                     .d_weight = g.norm2,
                     .d_out = s.d_norm,
                     .d_residual = d_h,
                     .h = a.h1,
                     .rstd = a.rstd2,
                     .weight = w.norm2},
                    stream);

  linear_backward({.d_x = s.d_attention,
                   .d_w = g.o,
                   .d_y = d_h,
                   .x = a.attention,
                   .w = w.o,
                   .accumulate = accumulate,
                   .input_name = "o_d_x",
                   .weight_name = "o_d_w"},
                  stream);
  sdpa_backward({.shape = c.attention,
                 .d_qkv = s.d_qkv,
                 .d_out = s.d_attention,
                 .out = a.attention,
                 .lse = a.lse,
                 .qkv = a.qkv,
                 .document_start = c.document_start},
                stream);
  rope({.qkv = s.d_qkv,
        .table = c.rope_table,
        .num_heads = c.config.num_heads,
        .num_kv_heads = c.config.num_kv_heads,
        .inverse = true},
       stream);
  linear_backward({.d_x = s.d_norm,
                   .d_w = g.qkv,
                   .d_y = s.d_qkv,
                   .x = a.norm1,
                   .w = w.qkv,
                   .accumulate = accumulate,
                   .input_name = "qkv_d_x",
                   .weight_name = "qkv_d_w"},
                  stream);
  rms_norm_backward({.d_h = d_h,
                     .d_weight = g.norm1,
                     .d_out = s.d_norm,
                     .d_residual = d_h,
                     .h = a.h0,
                     .rstd = a.rstd1,
                     .weight = w.norm1},
                    stream);
}

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape) {
  return {shape.micro_batch_size, shape.seq_len, config.num_heads, config.num_kv_heads, config.head_dim};
}

int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream) {
  const int64_t tokens = shape.tokens();
  const int64_t hidden = config.hidden_size;
  return std::max({linear_workspace_bytes(tokens, hidden, config.qkv_width(), compute, stream),
                   linear_workspace_bytes(tokens, config.attention_width(), hidden, compute, stream),
                   linear_workspace_bytes(tokens, hidden, 2 * config.intermediate_size, compute, stream),
                   linear_workspace_bytes(tokens, config.intermediate_size, hidden, compute, stream),
                   sdpa_workspace_bytes(sdpa_shape(config, shape), compute, stream),
                   rms_norm_backward_workspace_bytes(hidden, stream)});
}

}  // namespace octavo
