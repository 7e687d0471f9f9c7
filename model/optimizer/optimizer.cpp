#include "model/optimizer/optimizer.h"

#include "kernels/math/reduce.h"
#include "kernels/optimizer/ema.h"
#include "model/optimizer/whole_matrices.h"

namespace octavo {

OptimizerState master_state(const ShardedParameters& parameters) {
  return {.name = "weights",
          .shards = parameters.master(),
          .shift = std::vector<std::optional<int64_t>>(parameters.layout().units().size(), 0)};
}

Optimizer::Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena)
    : config_(config),
      parameters_(&parameters),
      amaxes_(amaxes),
      counted_gradients_(parameters.counted_gradients()),
      grad_sum_of_squares_(arena.allocate("gradient norm", DType::kFloat32, {1})) {
  const OptimizerTraits& own = traits(config.type);
  std::vector<const OptimizerTraits*> used = {&own};
  if (own.matrices_alone) used.insert(used.begin(), &traits(OptimizerType::kAdamw));
  for (const OptimizerTraits* optimizer : used) {
    const auto updates = [&](const ParameterUnit& unit) {
      return optimizer->matrices_alone == (own.matrices_alone && has_matrices(unit));
    };
    for (const OptimizerStateTraits& state : optimizer->states) {
      const bool rounds = config.state_dtype == DType::kFloat8E4M3 && state.codes_relative_to == nullptr;
      states_.push_back(make_state(state.name, rounds ? DType::kBFloat16 : config.state_dtype, arena, updates));
      states_.back().codes_relative_to = state.codes_relative_to;
    }
  }
  if (config.ema_decay > 0) {
    states_.push_back(make_state(kEmaState, DType::kFloat32, arena, [](const ParameterUnit&) { return true; }));
    states_.back().begins_as_weights = true;
  }
  std::span<const OptimizerState> states = states_;
  for (const OptimizerTraits* optimizer : used) {
    updates_.push_back(optimizer->make_update({.config = config,
                                               .parameters = parameters,
                                               .amaxes = amaxes,
                                               .states = states.first(optimizer->states.size()),
                                               .arena = arena}));
    states = states.subspan(optimizer->states.size());
  }
}

OptimizerState Optimizer::make_state(const char* name, DType dtype, Arena& arena,
                                     const std::function<bool(const ParameterUnit&)>& has) const {
  OptimizerState state{.name = name, .shards = {}};
  int64_t elements = 0;
  const std::vector<ParameterUnit>& units = parameters_->layout().units();
  for (size_t u = 0; u < units.size(); ++u) {
    state.shift.push_back(has(units[u]) ? std::make_optional(parameters_->unit_begin(u) - elements) : std::nullopt);
    if (state.has(u)) elements += parameters_->unit_begin(u + 1) - parameters_->unit_begin(u);
  }
  const Arena::Tag tag(arena, Contents::kOptimizer);
  state.shards = arena.allocate(name, dtype, {elements});
  return state;
}

int64_t Optimizer::workspace_bytes(const OptimizerConfig& config, const ParameterLayout& layout, DType compute,
                                   const Stream& stream) {
  const OptimizerTraits& optimizer = traits(config.type);
  return optimizer.workspace_bytes == nullptr ? 0 : optimizer.workspace_bytes(layout, compute, stream);
}

void Optimizer::warm_up(Stream& stream) {
  for (const auto& update : updates_) update->warm_up(stream);
}

void Optimizer::begin(const OptimizerState& state, Stream& stream) const {
  if (!state.begins_as_weights) return stream.zero(state.shards);
  stream.copy(state.shards, parameters_->master());
}

void Optimizer::begin(Stream& stream) const {
  for (const OptimizerState& state : states_) begin(state, stream);
}

void Optimizer::measure_gradients(Stream& stream) {
  parameters_->finish_gradients(stream);
  stream.zero(grad_sum_of_squares_);
  for (const Tensor& gradients : counted_gradients_) {
    sum_of_squares({.out = grad_sum_of_squares_, .x = gradients}, stream);
  }
  const Mesh* mesh = parameters_->mesh();
  if (mesh == nullptr) return;
  mesh->shard().all_reduce_sum(grad_sum_of_squares_, stream, "gradient norm");
  mesh->tensor().all_reduce_sum(grad_sum_of_squares_, stream, "gradient norm");
  mesh->pipeline().all_reduce_sum(grad_sum_of_squares_, stream, "gradient norm");
  // Weights of which several ranks have copies diverge if these ranks clip by norms that differ in the last bits. Ranks
  // of one group get the same sum, but two groups of an axis may add in different orders, so the largest sum is taken.
  // Copies of RMSNorm weights on tensor-parallel ranks are in different pipeline groups. Copies of a kv head may lie on
  // different shards, and then are in different tensor-parallel groups.
  const ParameterLayout& layout = parameters_->layout();
  const bool tensor_copies =
      layout.tensor().size > 1 && (mesh->shape().pipeline > 1 || has_kv_copies(layout.config(), layout.tensor().size));
  (tensor_copies ? mesh->world() : mesh->replicate())
      .all_reduce_max(grad_sum_of_squares_, stream, "gradient norm of the copies");
}

void Optimizer::step(int64_t step, double lr, const Tensor& skip, Stream& stream) {
  if (amaxes_ != nullptr) amaxes_->begin_weights(stream);
  for (const auto& update : updates_) {
    update->step({.step = step, .lr = lr, .grad_sum_of_squares = grad_sum_of_squares_, .skip = skip}, stream);
  }
  if (config_.ema_decay == 0) return;
  ema({.ema = states_.back().shards, .x = parameters_->master(), .skip = skip, .decay = config_.ema_decay}, stream);
}

}  // namespace octavo
