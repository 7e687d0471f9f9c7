#include "model/block/mlp.h"

#include "kernels/layers/swiglu.h"
#include "model/architecture/block_spec.h"

namespace octavo {

MlpActivations::MlpActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory) {
  const int64_t local_tokens = shape.local_tokens();
  const DType compute = memory.compute;
  norm.h = memory.get(Activation::kOutput, "h1", compute, {local_tokens, config.hidden_size});
  norm.rstd = memory.get(Activation::kOutput, "rstd2", DType::kFloat32, {local_tokens});
  norm.out = memory.norm("norm2", "gate_up", {local_tokens, config.hidden_size});
  gate_up = memory.get(Activation::kOutput, "gate_up", compute, {shape.tokens(), 2 * config.intermediate_size});
  norm.linear = memory.of_linear(
      "gate_up", {.x = memory.norm_if_kept(norm.out), .d_y = memory.if_kept(Activation::kOutput, gate_up)});
  down = memory.of_linear("down", {});
}

Mlp::Mlp(const SublayerParts& parts, const Tensor& swiglu)
    : norm_(parts, kMlpNorm), gate_up_(parts.linear("gate_up")), down_(parts.linear("down")), swiglu_(swiglu) {}

void Mlp::forward(const BlockContext& c, const MlpActivations& a, const Tensor& residual, const Tensor& delta,
                  BlockPass pass) const {
  norm_.forward(c, a.norm, delta, residual, gate_up_, pass);
  gate_up_.forward(a.norm.linear, {.y = a.gate_up, .x = a.norm.out, .pass = pass}, c.stream);
  if (pass != BlockPass::kForward) return;
  const ProducerWork work = down_.input_work(a.down, pass);
  swiglu_forward({.out = swiglu_,
                  .gate_up = a.gate_up,
                  .amax = work.amax,
                  .cast = work.cast,
                  .gradient_bound_factor = a.norm.linear.gradient_bound_factor},
                 c.stream);
  observe(c.observer, {.op = "swiglu_forward", .results = {swiglu_}, .inputs = {a.gate_up}});
  down_.forward(a.down, {.y = delta, .x = swiglu_, .pass = pass}, c.stream);
}

// Backward of down and swiglu. swiglu_backward overwrites gate_up with its gradient, because no later op reads gate_up.
// It also writes the input of down, if the recipe can cast it in one pass. The input of a linear is recomputed before
// its output gradient is computed, because both may be cast into the same LinearScratch.
void Mlp::down_backward(const BlockContext& c, const MlpActivations& a, const SublayerBackward& args) const {
  const bool by_product = down_.recomputes_input() && down_.input_is_by_product();
  if (down_.recomputes_input() && !by_product) {
    swiglu_forward({.out = swiglu_, .gate_up = a.gate_up}, c.stream);
    down_.recompute_input(a.down, swiglu_, c.stream);
  }
  const Tensor& d_swiglu = swiglu_;
  const auto swiglu_gradient = [&] {
    norm_.recompute_input(c, a.norm, gate_up_);
    gate_up_.bound_gradient(a.norm.linear, d_swiglu, c.stream);
    const ProducerWork work = gate_up_.gradient_work(a.norm.linear);
    swiglu_backward({.d_gate_up = a.gate_up,
                     .d_out = d_swiglu,
                     .gate_up = a.gate_up,
                     .amax = work.amax,
                     .cast = work.cast,
                     .out = by_product ? swiglu_ : Tensor(),
                     .out_cast = by_product ? down_.input_work(a.down, BlockPass::kBackward).cast : Fp8Cast()},
                    c.stream);
    observe(c.observer, {.op = "swiglu_backward", .results = {a.gate_up}, .inputs = {d_swiglu, a.gate_up}});
  };
  down_.backward(a.down,
                 {.d_x = d_swiglu,
                  .d_y = args.d_h,
                  .x = swiglu_,
                  .weight_gradient = args.weight_gradient,
                  .between = swiglu_gradient},
                 c.stream);
}

void Mlp::backward(const BlockContext& c, const MlpActivations& a, const SublayerBackward& args) const {
  down_backward(c, a, args);
  gate_up_.backward(a.norm.linear,
                    {.d_x = args.d_norm, .d_y = a.gate_up, .x = a.norm.out, .weight_gradient = args.weight_gradient},
                    c.stream);
  norm_.backward(c, a.norm, args);
}

void Mlp::backward_weights(const MlpActivations& a, bool accumulate, Stream& stream) const {
  down_.backward_weights(a.down, accumulate, stream);
  gate_up_.backward_weights(a.norm.linear, accumulate, stream);
}

}  // namespace octavo
