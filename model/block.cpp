#include "model/block.h"

#include <algorithm>

#include "core/error.h"
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

BlockActivations::BlockActivations(const ModelConfig& config, const BatchShape& shape, const Options& o,
                                   SharedActivations& shared, Arena& arena) {
  const DType compute = o.compute;
  const int64_t tokens = shape.tokens();
  const int64_t share = shape.share();
  const int64_t hidden = config.hidden_size;
  const auto output = [&](const char* name, DType dtype, std::initializer_list<int64_t> sizes) {
    return keeps(o.recompute, Activation::kOutput)
               ? arena.allocate(fmt::format("activations {}", name), dtype, sizes, Lifetime::kStep)
               : shared.get(name, dtype, sizes, arena);
  };
  const bool keeps_inputs = keeps(o.recompute, Activation::kLinearInput);
  const auto norm = [&](const char* name, const char* shared_name) {
    return o.reads_norms && keeps_inputs
               ? arena.allocate(fmt::format("activations {}", name), compute, {share, hidden}, Lifetime::kStep)
               : shared.get(shared_name, compute, {share, hidden}, arena);
  };
  // Both norms can lie in one place, unless a forward makes both for backward.
  const bool makes_both = o.reads_norms && o.recompute == Recompute::kBlock;
  h0 = arena.allocate("activations h0", compute, {share, hidden}, Lifetime::kStep);
  rstd1 = output("rstd1", DType::kFloat32, {share});
  norm1 = norm("qkv input", makes_both ? "norm1" : "norm");
  qkv = output("qkv", compute, {tokens, config.qkv_width()});
  attention = output("attention", compute, {tokens, config.attention_width()});
  lse = output("lse", DType::kFloat32, {shape.micro_batch_size, config.num_heads, shape.seq_len});
  h1 = output("h1", compute, {share, hidden});
  rstd2 = output("rstd2", DType::kFloat32, {share});
  norm2 = norm("gate_up input", makes_both ? "norm2" : "norm");
  gate_up = output("gate_up", compute, {tokens, 2 * config.intermediate_size});
}

BlockScratch::BlockScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients,
                           Arena& arena) {
  const int64_t tokens = shape.tokens();
  swiglu = arena.allocate("swiglu", compute, {tokens, config.intermediate_size}, Lifetime::kBlock);
  if (!gradients) return;
  d_norm = arena.allocate("gradient of norm", compute, {shape.share(), config.hidden_size}, Lifetime::kBlock);
  d_qkv = arena.allocate("gradient of qkv", compute, {tokens, config.qkv_width()}, Lifetime::kBlock);
  d_attention = arena.allocate("gradient of attention", compute, {tokens, config.attention_width()}, Lifetime::kBlock);
}

void BlockContext::clear_padding(const Tensor& rows) const {
  if (padding_begin < rows.dim(0)) stream.zero(rows.rows(padding_begin, rows.dim(0)));
}

namespace {

// A norm, whose result is the input of `linear` alone.
void norm_forward(const BlockContext& c, RmsNormForward args, const LinearLayer& linear, ForwardPass pass) {
  args.eps = static_cast<float>(c.config.rms_norm_eps);
  args.amax = linear.input_amax(pass);
  args.cast = linear.input_cast(pass);
  rms_norm_forward(args, c.stream);
}

// swiglu, and down of it.
void down_forward(const BlockContext& c, const BlockForward& args, ForwardPass pass) {
  LinearLayer& down = args.linears.down;
  swiglu_forward({.out = args.scratch.swiglu,
                  .gate_up = args.activations.gate_up,
                  .amax = down.input_amax(pass),
                  .cast = down.input_cast(pass)},
                 c.stream);
  down.forward(args.delta, args.scratch.swiglu, Made::kCast, c.stream, pass);
}

// Where the linear's backward wants it: the norm of what is kept of the residual stream, and what is made of it.
void make_norm_again(const BlockContext& c, const RmsNormForward& args, LinearLayer& linear) {
  if (!linear.makes_input_again()) return;
  norm_forward(c, args, linear, ForwardPass::kInputAgain);
  linear.forward({}, args.out, Made::kCast, c.stream, ForwardPass::kInputAgain);
}

RmsNormForward norm_of(const Tensor& h, const Tensor& rstd, const Tensor& weight, const Tensor& out) {
  return {.out = out, .rstd = rstd, .residual_out = {}, .x = h, .residual = {}, .weight = weight};
}

}  // namespace

void block_forward(const BlockContext& c, const BlockForward& args) {
  Stream& stream = c.stream;
  const auto& [w, linears, a, s, residual, delta, pass] = args;

  norm_forward(c,
               {.out = a.norm1,
                .rstd = a.rstd1,
                .residual_out = a.h0,
                .x = residual.defined() ? delta : a.h0,
                .residual = residual,
                .weight = w.norm1()},
               linears.qkv, pass);
  linears.qkv.forward(a.qkv, a.norm1, Made::kCast, stream, pass);
  rope({.qkv = a.qkv, .table = c.rope_table, .num_heads = c.config.num_heads, .num_kv_heads = c.config.num_kv_heads},
       stream);
  sdpa_forward(
      {.shape = c.attention, .out = a.attention, .lse = a.lse, .qkv = a.qkv, .document_start = c.document_start},
      stream);
  c.clear_padding(a.attention);  // the rest of a block makes zeros of zeros
  linears.o.forward(delta, a.attention, Made::kPlain, stream, pass);

  norm_forward(
      c, {.out = a.norm2, .rstd = a.rstd2, .residual_out = a.h1, .x = delta, .residual = a.h0, .weight = w.norm2()},
      linears.gate_up, pass);
  linears.gate_up.forward(a.gate_up, a.norm2, Made::kCast, stream, pass);
  if (pass == ForwardPass::kFirst) down_forward(c, args, pass);
}

namespace {

// Gradients of down and swiglu: d_gate_up in place of gate_up, whose last reader writes it. That one makes the input of
// down again on the way, where it can. An input is made again before the gradient that its linear is to read: both may
// be on their way in the linears' scratch.
void down_backward(const BlockContext& c, const BlockBackward& args) {
  const BlockActivations& a = args.activations;
  const Tensor& swiglu = args.scratch.swiglu;
  LinearLayer& down = args.linears.down;
  LinearLayer& gate_up = args.linears.gate_up;
  const bool wanted = down.makes_input_again();
  const bool on_the_way = wanted && down.input_needs_no_pass();
  if (wanted && !on_the_way) {
    swiglu_forward({.out = swiglu, .gate_up = a.gate_up}, c.stream);
    down.forward({}, swiglu, Made::kPlain, c.stream, ForwardPass::kInputAgain);
  }
  const Tensor& d_swiglu = swiglu;
  down.backward(d_swiglu, args.d_h, Made::kMeasured, args.accumulate, c.stream, [&] {
    make_norm_again(c, norm_of(a.h1, a.rstd2, args.weights.norm2(), a.norm2), gate_up);
    swiglu_backward({.d_gate_up = a.gate_up,
                     .d_out = d_swiglu,
                     .gate_up = a.gate_up,
                     .amax = gate_up.gradient_amax(),
                     .cast = gate_up.gradient_cast(),
                     .out = on_the_way ? swiglu : Tensor(),
                     .out_cast = on_the_way ? down.input_cast(ForwardPass::kInputAgain) : Fp8Cast()},
                    c.stream);
  });
}

}  // namespace

void block_backward(const BlockContext& c, const BlockBackward& args) {
  Stream& stream = c.stream;
  const auto& [w, g, linears, a, s, d_h, d_h_amax, accumulate] = args;

  down_backward(c, args);
  linears.gate_up.backward(s.d_norm, a.gate_up, Made::kCast, accumulate, stream);
  rms_norm_backward({.d_h = d_h,
                     .d_weight = g.norm2,
                     .d_out = s.d_norm,
                     .d_residual = d_h,
                     .h = a.h1,
                     .rstd = a.rstd2,
                     .weight = w.norm2(),
                     .amax = linears.o.gradient_amax()},
                    stream);

  linears.o.forward({}, a.attention, Made::kPlain, stream, ForwardPass::kInputAgain);
  linears.o.backward(s.d_attention, d_h, Made::kMeasured, accumulate, stream);
  make_norm_again(c, norm_of(a.h0, a.rstd1, w.norm1(), a.norm1), linears.qkv);
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
