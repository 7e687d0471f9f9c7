#include "model/block_weights.h"

#include "kernels/fp8_shard.h"
#include "model/quantize_part.h"

namespace octavo {

BlockWeightMemory::BlockWeightMemory(const std::array<LinearShape, kLinearsPerBlock>& shapes, LinearPrecision recipe,
                                     bool with_rows, bool with_columns, Lifetime lifetime, Arena& arena) {
  constexpr DType kFormat = DType::kFloat8E4M3;
  const Scaling scaling = traits(recipe).weights;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t in = shapes[i].in;
    const int64_t out = shapes[i].out;
    if (with_rows) rows[i] = allocate_operand("fp8 weights", kFormat, scaling, out, in, arena, lifetime);
    if (with_columns)
      columns[i] = allocate_operand("fp8 weights transposed", kFormat, scaling, in, out, arena, lifetime);
  }
}

BlockWeights::BlockWeights(const Options& o, Arena& arena)
    : views_([&](const ParameterSpec& spec) { return o.parameters.full_weight(spec); }, o.parameters.layout(), o.config,
             o.layer),
      first_linear_(o.layer * kLinearsPerBlock),
      stats_(o.stats),
      tensor_(o.tensor),
      shapes_(o.shapes),
      keeps_(o.parameters.fsdp().keeps_weight(ParameterLayout::block_unit(o.layer))),
      rows_are_gathered_(o.parameters.travels_in_fp8(ParameterLayout::block_unit(o.layer))),
      gathered_{views_.qkv, views_.o, views_.gate_up, views_.down} {
  const LinearPrecision recipe = o.precision.of_layer(o.layer, o.config.num_layers);
  is_fp8_ = is_fp8(recipe);
  if (!is_fp8_) {
    for (size_t i = 0; i < gathered_.size(); ++i) weights_[i].value = gathered_[i];
    return;
  }
  const auto allocate = [&] {
    return std::make_unique<BlockWeightMemory>(o.shapes, recipe, !rows_are_gathered_, o.mode == LlamaMode::kTraining,
                                               keeps_ ? Lifetime::kRun : Lifetime::kBlock, arena);
  };
  std::unique_ptr<BlockWeightMemory> own;
  if (keeps_) own = allocate();
  if (!keeps_ && o.shared == nullptr) o.shared = allocate();
  const BlockWeightMemory& memory = keeps_ ? *own : *o.shared;
  for (size_t i = 0; i < gathered_.size(); ++i) {
    LinearWeight& w = weights_[i];
    w.rows = rows_are_gathered_ ? Fp8Operand{.data = gathered_[i], .scale_inv = {}, .scaling = Scaling::kTensor}
                                : memory.rows[i];
    w.columns = memory.columns[i];
    if (!needs_amax(recipe)) continue;
    const int64_t linear = first_linear_ + static_cast<int64_t>(i);
    scaling_[i] = o.amaxes->weight_scaling(linear);
    if (!rows_are_gathered_) continue;
    w.rows.scale_inv = o.amaxes->weight_scale_inv(linear);
    w.columns.scale_inv = o.amaxes->weight_scale_inv(linear);
  }
}

void BlockWeights::prepare(bool rows, bool columns, Stream& stream) const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const LinearWeight& w = weights_[i];
    const bool wants_columns = columns && w.columns.defined();
    if (rows_are_gathered_) {
      if (wants_columns) fp8_transpose({.out = w.columns.data, .x = w.rows.data}, stream);
    } else {
      quantize_part({.rows = rows ? w.rows : Fp8Operand{},
                     .columns = wants_columns ? w.columns : Fp8Operand{},
                     .x = gathered_[i],
                     .amax = scaling_[i],
                     .amax_out = {}},
                    shapes_[i].divided, tensor_, stream);
    }
  }
}

// Of rows that were cast here.
void BlockWeights::add_stats(Stream& stream) const {
  if (stats_ == nullptr || rows_are_gathered_) return;
  for (size_t i = 0; i < weights_.size(); ++i) {
    stats_->add({.linear = first_linear_ + static_cast<int64_t>(i),
                 .kind = AmaxTable::kWeight,
                 .rows = weights_[i].rows,
                 .x = gathered_[i],
                 .amax = scaling_[i]},
                stream);
  }
}

void BlockWeights::prepare_forward(bool fresh, Stream& stream) const {
  if (!is_fp8_ || (keeps_ && !fresh)) return;
  prepare(true, keeps_, stream);
  add_stats(stream);
}

void BlockWeights::prepare_backward(bool reruns, Stream& stream) const {
  if (!is_fp8_ || keeps_) return;
  prepare(reruns, true, stream);
}

}  // namespace octavo
