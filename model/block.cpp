#include "model/block.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "model/block_weights.h"

namespace octavo {

BlockParameters::BlockParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config,
                                 int64_t layer) {
  const auto find = [&](const char* name) { return view(layout.find(fmt::format("model.layers.{}.{}", layer, name))); };
  // The first of parameters that lie one under the other, as one matrix.
  const auto packed = [&](const char* name, int64_t rows) {
    const Tensor first = find(name);
    return Tensor(first.raw(), first.dtype(), {rows, config.hidden_size});
  };
  norm1 = find("input_layernorm.weight");
  norm2 = find("post_attention_layernorm.weight");
  qkv = packed("self_attn.q_proj.weight", config.qkv_width());
  o = find("self_attn.o_proj.weight");
  gate_up = packed("mlp.gate_proj.weight", 2 * config.intermediate_size);
  down = find("mlp.down_proj.weight");
}

BlockTransients::BlockTransients(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena)
    : norm(arena.allocate("norm", compute, {shape.share(), config.hidden_size})),
      swiglu(arena.allocate("swiglu", compute, {shape.tokens(), config.intermediate_size})) {}

BlockActivations::BlockActivations(const ModelConfig& config, const BatchShape& shape, DType compute,
                                   const BlockTransients* transients, Arena& arena) {
  const int64_t tokens = shape.tokens();
  const int64_t share = shape.share();
  const int64_t hidden = config.hidden_size;
  const auto norm = [&](const char* name) {
    return transients != nullptr ? transients->norm : arena.allocate(name, compute, {share, hidden});
  };
  h0 = arena.allocate("activations h0", compute, {share, hidden});
  rstd1 = arena.allocate("activations rstd1", DType::kFloat32, {share});
  norm1 = norm("activations norm1");
  qkv = arena.allocate("activations qkv", compute, {tokens, config.qkv_width()});
  attention = arena.allocate("activations attention", compute, {tokens, config.attention_width()});
  lse = arena.allocate("activations lse", DType::kFloat32, {shape.micro_batch_size, config.num_heads, shape.seq_len});
  h1 = arena.allocate("activations h1", compute, {share, hidden});
  rstd2 = arena.allocate("activations rstd2", DType::kFloat32, {share});
  norm2 = norm("activations norm2");
  gate_up = arena.allocate("activations gate_up", compute, {tokens, 2 * config.intermediate_size});
  swiglu = transients != nullptr ? transients->swiglu
                                 : arena.allocate("activations swiglu", compute, {tokens, config.intermediate_size});
}

BlockGradients::BlockGradients(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena) {
  const int64_t tokens = shape.tokens();
  d_norm = arena.allocate("gradient of norm", compute, {shape.share(), config.hidden_size});
  d_qkv = arena.allocate("gradient of qkv", compute, {tokens, config.qkv_width()});
  d_attention = arena.allocate("gradient of attention", compute, {tokens, config.attention_width()});
  d_swiglu = arena.allocate("gradient of swiglu", compute, {tokens, config.intermediate_size});
}

void block_forward(const BlockContext& c, const BlockWeights& w, BlockLinears& linears, const Tensor& residual,
                   const Tensor& delta, const BlockActivations& a) {
  Stream& stream = c.stream;
  const auto eps = static_cast<float>(c.config.rms_norm_eps);

  rms_norm_forward({.out = a.norm1,
                    .rstd = a.rstd1,
                    .residual_out = a.h0,
                    .x = residual.defined() ? delta : a.h0,
                    .residual = residual,
                    .weight = w.norm1(),
                    .eps = eps,
                    .amax = linears.qkv.input_amax(),
                    .cast = linears.qkv.input_cast()},
                   stream);
  linears.qkv.forward(a.qkv, a.norm1, Made::kCast, stream);
  rope({.qkv = a.qkv, .table = c.rope_table, .num_heads = c.config.num_heads, .num_kv_heads = c.config.num_kv_heads},
       stream);
  sdpa_forward(
      {.shape = c.attention, .out = a.attention, .lse = a.lse, .qkv = a.qkv, .document_start = c.document_start},
      stream);
  linears.o.forward(delta, a.attention, Made::kPlain, stream);

  rms_norm_forward({.out = a.norm2,
                    .rstd = a.rstd2,
                    .residual_out = a.h1,
                    .x = delta,
                    .residual = a.h0,
                    .weight = w.norm2(),
                    .eps = eps,
                    .amax = linears.gate_up.input_amax(),
                    .cast = linears.gate_up.input_cast()},
                   stream);
  linears.gate_up.forward(a.gate_up, a.norm2, Made::kCast, stream);
  swiglu_forward(
      {.out = a.swiglu, .gate_up = a.gate_up, .amax = linears.down.input_amax(), .cast = linears.down.input_cast()},
      stream);
  linears.down.forward(delta, a.swiglu, Made::kCast, stream);
}

void block_backward(const BlockContext& c, const BlockBackward& args) {
  Stream& stream = c.stream;
  const auto& [w, g, linears, a, s, d_h, d_h_amax, accumulate] = args;
  const Tensor& d_gate_up = a.gate_up;  // in place: the last reader of gate_up writes its gradient

  linears.down.backward(s.d_swiglu, d_h, Made::kMeasured, accumulate, stream);
  swiglu_backward({.d_gate_up = d_gate_up,
                   .d_out = s.d_swiglu,
                   .gate_up = a.gate_up,
                   .amax = linears.gate_up.gradient_amax(),
                   .cast = linears.gate_up.gradient_cast()},
                  stream);
  linears.gate_up.backward(s.d_norm, d_gate_up, Made::kCast, accumulate, stream);
  rms_norm_backward({.d_h = d_h,
                     .d_weight = g.norm2,
                     .d_out = s.d_norm,
                     .d_residual = d_h,
                     .h = a.h1,
                     .rstd = a.rstd2,
                     .weight = w.norm2(),
                     .amax = linears.o.gradient_amax()},
                    stream);

  linears.o.backward(s.d_attention, d_h, Made::kMeasured, accumulate, stream);
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
        .inverse = true,
        .amax = linears.qkv.gradient_amax(),
        .cast = linears.qkv.gradient_cast()},
       stream);
  linears.qkv.backward(s.d_norm, s.d_qkv, Made::kCast, accumulate, stream);
  rms_norm_backward({.d_h = d_h,
                     .d_weight = g.norm1,
                     .d_out = s.d_norm,
                     .d_residual = d_h,
                     .h = a.h0,
                     .rstd = a.rstd1,
                     .weight = w.norm1(),
                     .amax = d_h_amax},
                    stream);
}

std::array<LinearShape, kLinearsPerBlock> linear_shapes(const ModelConfig& config, const BatchShape& shape) {
  const int64_t tokens = shape.tokens();
  return {LinearShape{tokens, config.hidden_size, config.qkv_width(), Divided::kOutputs},
          LinearShape{tokens, config.attention_width(), config.hidden_size, Divided::kInputs},
          LinearShape{tokens, config.hidden_size, 2 * config.intermediate_size, Divided::kOutputs},
          LinearShape{tokens, config.intermediate_size, config.hidden_size, Divided::kInputs}};
}

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape) {
  return {shape.micro_batch_size, shape.seq_len, config.num_heads, config.num_kv_heads, config.head_dim};
}

int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                              Stream& stream) {
  int64_t bytes = std::max(sdpa_workspace_bytes(sdpa_shape(config, shape), precision.compute, stream),
                           rms_norm_backward_workspace_bytes(config.hidden_size, stream));
  for (const LinearShape& linear : linear_shapes(config, shape)) {
    for (const LinearPrecision recipe : {precision.linear, LinearPrecision::kBFloat16}) {
      bytes = std::max(bytes, LinearLayer::workspace_bytes(recipe, linear, precision.compute, stream));
    }
  }
  return bytes;
}

}  // namespace octavo
