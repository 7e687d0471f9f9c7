#include "model/optimizer.h"

#include "kernels/adamw.h"
#include "kernels/reduce.h"

namespace octavo {

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterLayout& layout, const ParameterBuffers& parameters,
                     Arena& arena)
    : config_(config),
      parameters_(&parameters),
      exp_avg_(arena.allocate("exp_avg", config.state_dtype, {layout.total_elements()})),
      exp_avg_sq_(arena.allocate("exp_avg_sq", config.state_dtype, {layout.total_elements()})),
      grad_sum_of_squares_(arena.allocate("gradient norm", DType::kFloat32, {1})) {
  // Padding between parameters goes with its predecessor: its gradients are zero and so it stays zero.
  for (const ParameterSpec& spec : layout.specs()) {
    if (!segments_.empty()) segments_.back().end = spec.offset;
    if (segments_.empty() || segments_.back().decayed != spec.decayed()) {
      segments_.push_back({spec.offset, layout.total_elements(), spec.decayed()});
    }
  }
  segments_.back().end = layout.total_elements();
}

void Optimizer::step(int64_t step, double lr, Stream& stream) {
  const ParameterBuffers& p = *parameters_;
  stream.zero(grad_sum_of_squares_);
  sum_of_squares({.out = grad_sum_of_squares_, .x = p.grad}, stream);
  const bool casts = p.weight.dtype() != DType::kFloat32;
  for (const Segment& segment : segments_) {
    const auto slice = [&](const Tensor& flat) { return flat.rows(segment.begin, segment.end); };
    adamw({.master = slice(p.master),
           .exp_avg = slice(exp_avg_),
           .exp_avg_sq = slice(exp_avg_sq_),
           .grad = slice(p.grad),
           .weight = casts ? slice(p.weight) : Tensor(),
           .grad_sum_of_squares = grad_sum_of_squares_,
           .options = {.lr = static_cast<float>(lr),
                       .beta1 = static_cast<float>(config_.beta1),
                       .beta2 = static_cast<float>(config_.beta2),
                       .eps = static_cast<float>(config_.eps),
                       .weight_decay = segment.decayed ? static_cast<float>(config_.weight_decay) : 0.0f,
                       .grad_clip = static_cast<float>(config_.grad_clip),
                       .step = step}},
          stream);
  }
}

}  // namespace octavo
