#include "model/optimizer/adamw.h"

#include "core/mix_bits.h"
#include "kernels/optimizer/adamw.h"
#include "model/optimizer/optimizer.h"

namespace octavo {

namespace {

// Parameters that are adjacent in shard buffers, padding included, and are updated alike.
struct Segment {
  int64_t begin;
  int64_t end;
  bool decayed;
  Tensor exp_avg;
  Tensor exp_avg_sq;
  Tensor weight;      // = the rounded weights; undefined if the master weights, or FP8 casts of them, are read instead
  Tensor amax;        // amax of a weight under a per-tensor recipe
  MatrixRange range;  // indices of the elements in the whole model (kernels/math/matrix_range.h)
};

class AdamwOptimizer : public ParameterUpdate {
 public:
  explicit AdamwOptimizer(const UpdateOptions& options)
      : config_(options.config),
        parameters_(&options.parameters),
        amaxes_(options.amaxes),
        exp_avg_(options.states[0]),
        exp_avg_sq_(options.states[1]) {
    find_segments();
  }

  void step(const UpdateStep& step, Stream& stream) override;

 private:
  void find_segments();

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  AmaxTable* amaxes_;
  OptimizerState exp_avg_;
  OptimizerState exp_avg_sq_;
  std::vector<Segment> segments_;
};

// Padding after a slice needs no update. Its gradients are zero, so it stays zero.
void AdamwOptimizer::find_segments() {
  const bool codes = config_.state_dtype == DType::kFloat8E4M3;
  // The random bits of codes depend on the place of a parameter in the whole model, so they are equal on every mesh and
  // replica. Without codes nothing reads the indices of elements.
  const std::optional<ParameterLayout> whole = codes ? std::optional(parameters_->layout().whole()) : std::nullopt;
  for (const ParameterSlice& slice : parameters_->slices()) {
    const size_t unit = slice.spec->unit;
    if (!exp_avg_.has(unit)) continue;
    const bool fp8 = parameters_->travels_in_fp8(unit);
    const Tensor amax = amaxes_ != nullptr && slice.spec->linear >= 0
                            ? amaxes_->current(slice.spec->linear, AmaxTable::kWeight)
                            : Tensor();
    const Tensor weight = fp8 ? Tensor() : parameters_->weight(slice);
    const int64_t end = slice.offset + slice.end - slice.begin;
    MatrixRange range = slice.spec->range(slice.begin);
    if (whole) range.first_index += whole->find(slice.spec->name).offset;
    Segment* last = segments_.empty() ? nullptr : &segments_.back();
    const auto follows = [&](const Tensor& before) {
      if (before.defined() != weight.defined()) return false;
      return !weight.defined() || static_cast<char*>(before.raw()) + before.bytes() == weight.raw();
    };
    const auto continues = [&](const MatrixRange& before) {
      return before.is_one_row() && range.is_one_row() && before.index(slice.offset - last->begin) == range.index(0);
    };
    const bool joins = last != nullptr && last->decayed == slice.spec->decayed() && last->end == slice.offset &&
                       last->amax.raw() == amax.raw() && follows(last->weight) && (!codes || continues(last->range));
    if (!joins) {
      segments_.push_back({.begin = slice.offset,
                           .end = end,
                           .decayed = slice.spec->decayed(),
                           .exp_avg = exp_avg_.of(slice),
                           .exp_avg_sq = exp_avg_sq_.of(slice),
                           .weight = weight,
                           .amax = amax,
                           .range = range});
      continue;
    }
    last->end = end;
    last->exp_avg = exp_avg_.slice(unit, last->begin, end);
    last->exp_avg_sq = exp_avg_sq_.slice(unit, last->begin, end);
    if (weight.defined()) last->weight = Tensor(last->weight.raw(), weight.dtype(), {end - last->begin});
  }
}

void AdamwOptimizer::step(const UpdateStep& step, Stream& stream) {
  const ShardedParameters& p = *parameters_;
  for (const Segment& segment : segments_) {
    const auto slice = [&](const Tensor& flat) { return flat.rows(segment.begin, segment.end); };
    adamw({.master = slice(p.master()),
           .exp_avg = segment.exp_avg,
           .exp_avg_sq = segment.exp_avg_sq,
           .grad = slice(p.gradients()),
           .weight = segment.weight,
           .amax = segment.amax,
           .grad_sum_of_squares = step.grad_sum_of_squares,
           .skip = step.skip,
           .options = {.lr = static_cast<float>(step.lr),
                       .beta1 = static_cast<float>(config_.beta1),
                       .beta2 = static_cast<float>(config_.beta2),
                       .eps = static_cast<float>(config_.eps),
                       .weight_decay = segment.decayed ? static_cast<float>(config_.weight_decay) : 0.0f,
                       .grad_clip = static_cast<float>(config_.grad_clip),
                       .step = step.step},
           .random_key = mix_bits(static_cast<uint64_t>(step.step)),
           .range = segment.range},
          stream);
  }
}

}  // namespace

std::unique_ptr<ParameterUpdate> make_adamw_update(const UpdateOptions& options) {
  return std::make_unique<AdamwOptimizer>(options);
}

}  // namespace octavo
