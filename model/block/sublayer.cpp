#include "model/block/sublayer.h"

namespace octavo {

Tensor ActivationMemory::get(Activation kind, const char* name, DType dtype,
                             std::initializer_list<int64_t> shape) const {
  return keeps(kind) ? arena.allocate(fmt::format("activations {}", name), dtype, shape, Lifetime::kStep)
                     : shared.get(name, dtype, shape, arena);
}

Tensor ActivationMemory::norm(const char* name, const char* linear, std::initializer_list<int64_t> shape) const {
  if (keeps_norms()) {
    return arena.allocate(fmt::format("activations {} input", linear), compute, shape, Lifetime::kStep);
  }
  // All norms share one tensor, unless a block recomputes the outputs of both its norms before backward reads them.
  const bool makes_all = reads_norms && recompute == Recompute::kBlock;
  return shared.get(makes_all ? name : "norm", compute, shape, arena);
}

void SublayerNorm::compute(const BlockContext& c, const NormActivations& a, RmsNormForward args,
                           const LinearLayer& linear, BlockPass pass) const {
  args.out = a.out;
  args.rstd = a.rstd;
  args.eps = static_cast<float>(c.config.rms_norm_eps);
  const ProducerWork work = linear.input_work(a.linear, pass);
  args.amax = work.amax;
  args.cast = work.cast;
  rms_norm_forward(args, c.stream);
  observe(c.observer, {.op = "rms_norm_forward",
                       .results = {args.residual_out, args.cast.defined() ? Tensor() : args.out},
                       .inputs = {args.x, args.residual},
                       .weights = {weight_},
                       .parameter = name_});
}

void SublayerNorm::forward(const BlockContext& c, const NormActivations& a, const Tensor& x, const Tensor& residual,
                           const LinearLayer& linear, BlockPass pass) const {
  compute(c, a, {.out = {}, .rstd = {}, .residual_out = a.h, .x = x, .residual = residual, .weight = weight_}, linear,
          pass);
}

void SublayerNorm::recompute_input(const BlockContext& c, const NormActivations& a, const LinearLayer& linear) const {
  if (!linear.recomputes_input()) return;
  compute(c, a, {.out = {}, .rstd = {}, .residual_out = {}, .x = a.h, .residual = {}, .weight = weight_}, linear,
          BlockPass::kBackward);
  linear.recompute_input(a.linear, a.out, c.stream);
}

void SublayerNorm::backward(const BlockContext& c, const NormActivations& a, const SublayerBackward& args) const {
  rms_norm_backward({.d_h = args.d_h,
                     .d_weight = d_weight_,
                     .d_out = args.d_norm,
                     .d_residual = args.d_h,
                     .h = a.h,
                     .rstd = a.rstd,
                     .weight = weight_,
                     .amax = args.d_h_amax},
                    c.stream);
  observe(c.observer, {.op = "rms_norm_backward",
                       .results = {args.d_h, d_weight_},
                       .inputs = {args.d_norm, args.d_h, a.h},
                       .weights = {weight_},
                       .parameter = name_});
}

}  // namespace octavo
