#include "model/optimizer/optimizer.h"

#include <algorithm>

#include "core/mix_bits.h"
#include "kernels/math/reduce.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/ema.h"

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
  const auto is_matrices = [&](const ParameterUnit& unit) { return own.matrices_alone && Muon::updates(unit); };
  const auto add_states = [&](const OptimizerTraits& optimizer, const std::function<bool(const ParameterUnit&)>& has) {
    for (const OptimizerStateTraits& state : optimizer.states) {
      const bool rounds = config.state_dtype == DType::kFloat8E4M3 && !state.may_be_codes;
      states_.push_back(make_state(state.name, rounds ? DType::kBFloat16 : config.state_dtype, arena, has));
    }
  };
  add_states(traits(OptimizerType::kAdamw), std::not_fn(is_matrices));
  if (own.matrices_alone) add_states(own, is_matrices);
  if (config.ema_decay > 0) {
    states_.push_back(make_state(kEmaState, DType::kFloat32, arena, [](const ParameterUnit&) { return true; }));
    states_.back().begins_as_weights = true;
  }
  if (own.matrices_alone) muon_.emplace(config, parameters, arena);
  find_segments();
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

const OptimizerState& Optimizer::state(std::string_view name) const {
  return *std::find_if(states_.begin(), states_.end(), [&](const OptimizerState& s) { return s.name == name; });
}

int64_t Optimizer::workspace_bytes(const OptimizerConfig& config, const ParameterLayout& layout, DType compute,
                                   const Stream& stream) {
  return traits(config.type).matrices_alone ? Muon::workspace_bytes(layout, compute, stream) : 0;
}

void Optimizer::warm_up(Stream& stream) {
  if (muon_) muon_->warm_up(stream);
}

void Optimizer::begin(const OptimizerState& state, Stream& stream) const {
  if (!state.begins_as_weights) return stream.zero(state.shards);
  stream.copy(state.shards, parameters_->master());
}

void Optimizer::begin(Stream& stream) const {
  for (const OptimizerState& state : states_) begin(state, stream);
}

// Padding after a piece needs no update: its gradients are zero and so it stays zero.
void Optimizer::find_segments() {
  const bool codes = config_.state_dtype == DType::kFloat8E4M3;
  // Random bits are of the place in the whole model, the same on every mesh and of every copy.
  const ParameterLayout whole = parameters_->layout().whole();
  for (const ParameterPiece& piece : parameters_->pieces()) {
    const size_t unit = piece.spec->unit;
    const OptimizerState& exp_avg = state(kFirstMomentState);
    const OptimizerState& exp_avg_sq = state(kSecondMomentState);
    if (!exp_avg.has(unit)) continue;
    const bool fp8 = parameters_->travels_in_fp8(unit);
    const Tensor amax = amaxes_ != nullptr && piece.spec->linear >= 0
                            ? amaxes_->current(piece.spec->linear, AmaxTable::kWeight)
                            : Tensor();
    const Tensor weight = fp8 ? Tensor() : parameters_->weight(piece);
    const int64_t end = piece.offset + piece.end - piece.begin;
    MatrixRange range = piece.spec->range(piece.begin);
    range.first_index += whole.find(piece.spec->name).offset;
    Segment* last = segments_.empty() ? nullptr : &segments_.back();
    const auto follows = [&](const Tensor& before) {
      if (before.defined() != weight.defined()) return false;
      return !weight.defined() || static_cast<char*>(before.raw()) + before.bytes() == weight.raw();
    };
    const auto continues = [&](const MatrixRange& before) {
      return before.is_one_row() && range.is_one_row() && before.index(piece.offset - last->begin) == range.index(0);
    };
    const bool joins = last != nullptr && last->decayed == piece.spec->decayed() && last->end == piece.offset &&
                       last->amax.raw() == amax.raw() && follows(last->weight) && (!codes || continues(last->range));
    if (!joins) {
      segments_.push_back({.begin = piece.offset,
                           .end = end,
                           .decayed = piece.spec->decayed(),
                           .exp_avg = exp_avg.of(piece),
                           .exp_avg_sq = exp_avg_sq.of(piece),
                           .weight = weight,
                           .amax = amax,
                           .range = range});
      continue;
    }
    last->end = end;
    last->exp_avg = exp_avg.slice(unit, last->begin, end);
    last->exp_avg_sq = exp_avg_sq.slice(unit, last->begin, end);
    if (weight.defined()) last->weight = Tensor(last->weight.raw(), weight.dtype(), {end - last->begin});
  }
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
  // Replicas that clipped by other last bits would part.
  mesh->replicate().all_reduce_max(grad_sum_of_squares_, stream, "gradient norm of the copies");
}

void Optimizer::step(int64_t step, double lr, const Tensor& skip, Stream& stream) {
  if (amaxes_ != nullptr) amaxes_->begin_weights(stream);
  update_with_adamw(step, lr, skip, stream);
  if (muon_) {
    muon_->step({.momentum = state(kMomentumState).shards,
                 .amaxes = amaxes_,
                 .grad_sum_of_squares = grad_sum_of_squares_,
                 .skip = skip,
                 .lr = lr},
                stream);
  }
  if (config_.ema_decay == 0) return;
  ema({.ema = state(kEmaState).shards, .x = parameters_->master(), .skip = skip, .decay = config_.ema_decay}, stream);
}

void Optimizer::update_with_adamw(int64_t step, double lr, const Tensor& skip, Stream& stream) {
  const ShardedParameters& p = *parameters_;
  for (const Segment& segment : segments_) {
    const auto slice = [&](const Tensor& flat) { return flat.rows(segment.begin, segment.end); };
    adamw({.master = slice(p.master()),
           .exp_avg = segment.exp_avg,
           .exp_avg_sq = segment.exp_avg_sq,
           .grad = slice(p.gradients()),
           .weight = segment.weight,
           .amax = segment.amax,
           .grad_sum_of_squares = grad_sum_of_squares_,
           .skip = skip,
           .options = {.lr = static_cast<float>(lr),
                       .beta1 = static_cast<float>(config_.beta1),
                       .beta2 = static_cast<float>(config_.beta2),
                       .eps = static_cast<float>(config_.eps),
                       .weight_decay = segment.decayed ? static_cast<float>(config_.weight_decay) : 0.0f,
                       .grad_clip = static_cast<float>(config_.grad_clip),
                       .step = step},
           .random_key = mix_bits(static_cast<uint64_t>(step)),
           .range = segment.range},
          stream);
  }
}

}  // namespace octavo
