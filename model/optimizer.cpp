#include "model/optimizer.h"

#include "kernels/adamw.h"
#include "kernels/reduce.h"

namespace octavo {

Optimizer::Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena)
    : config_(config),
      parameters_(&parameters),
      amaxes_(amaxes),
      counted_gradients_(parameters.counted_gradients()),
      grad_sum_of_squares_(arena.allocate("gradient norm", DType::kFloat32, {1})) {
  for (const char* name : {"exp_avg", "exp_avg_sq"}) {
    states_.push_back({name, arena.allocate(name, config.state_dtype, {parameters.master().numel()})});
  }
  find_segments();
}

// Padding after a piece needs no update: its gradients are zero and so it stays zero.
void Optimizer::find_segments() {
  for (const ParameterPiece& piece : parameters_->pieces()) {
    const size_t unit = piece.spec->unit;
    const bool fp8 = parameters_->travels_in_fp8(unit);
    const Tensor amax = amaxes_ != nullptr && piece.spec->linear >= 0
                            ? amaxes_->current(piece.spec->linear, AmaxTable::kWeight)
                            : Tensor();
    const Tensor weight = fp8 ? Tensor() : parameters_->weight(piece);
    const int64_t end = piece.offset + piece.end - piece.begin;
    Segment* last = segments_.empty() ? nullptr : &segments_.back();
    const auto follows = [&](const Tensor& before) {
      if (before.defined() != weight.defined()) return false;
      return !weight.defined() || static_cast<char*>(before.raw()) + before.bytes() == weight.raw();
    };
    const bool joins = last != nullptr && last->decayed == piece.spec->decayed() && last->end == piece.offset &&
                       last->amax.raw() == amax.raw() && follows(last->weight);
    if (!joins) {
      segments_.push_back({piece.offset, end, piece.spec->decayed(), weight, amax});
      continue;
    }
    last->end = end;
    if (weight.defined()) last->weight = Tensor(last->weight.raw(), weight.dtype(), {end - last->begin});
  }
}

void Optimizer::measure_gradients(const ParameterRanks& ranks, Stream& stream) {
  parameters_->finish_gradients(ranks.tensor, stream);
  stream.zero(grad_sum_of_squares_);
  for (const Tensor& gradients : counted_gradients_) {
    sum_of_squares({.out = grad_sum_of_squares_, .x = gradients}, stream);
  }
  for (Communicator* group : {ranks.shard, ranks.tensor}) {
    if (group != nullptr) group->all_reduce_sum(grad_sum_of_squares_, stream, "gradient norm");
  }
}

void Optimizer::step(int64_t step, double lr, const Tensor& skip, Stream& stream) {
  const ShardedParameters& p = *parameters_;
  if (amaxes_ != nullptr) amaxes_->begin_weights(stream);
  for (const Segment& segment : segments_) {
    const auto slice = [&](const Tensor& flat) { return flat.rows(segment.begin, segment.end); };
    adamw({.master = slice(p.master()),
           .exp_avg = slice(states_[kExpAvg].shards),
           .exp_avg_sq = slice(states_[kExpAvgSq].shards),
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
                       .step = step}},
          stream);
  }
}

}  // namespace octavo
