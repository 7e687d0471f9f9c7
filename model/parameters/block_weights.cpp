#include "model/parameters/block_weights.h"

#include <utility>

#include "kernels/fp8/fp8_shard.h"
#include "model/linear/quantize_part.h"

namespace octavo {

BlockWeightMemory::BlockWeightMemory(std::span<const LinearSpec> linears, LinearPrecision recipe, bool with_rows,
                                     bool with_columns, Lifetime lifetime, Arena& arena)
    : rows(linears.size()), columns(linears.size()) {
  const Arena::Tag tag(arena, Contents::kWeights);
  constexpr DType kFormat = DType::kFloat8E4M3;
  const Scaling scaling = traits(recipe).weights;
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto& [tokens, in, out, divided] = linears[i].shape;
    if (with_rows) rows[i] = allocate_operand("fp8 weights", kFormat, scaling, out, in, arena, lifetime);
    if (with_columns)
      columns[i] = allocate_operand("fp8 weights transposed", kFormat, scaling, in, out, arena, lifetime);
  }
}

BlockWeights::BlockWeights(const Options& o, Arena& arena)
    : first_linear_(o.first_linear),
      stats_(o.stats),
      tensor_(o.tensor),
      is_fp8_(is_fp8(o.recipe)),
      keeps_(o.parameters.fsdp().keeps_weight(o.parameters.layout().block_unit(o.layer))),
      rows_are_gathered_(o.parameters.travels_in_fp8(o.parameters.layout().block_unit(o.layer))) {
  const auto view = [&](const ParameterSpec& spec) { return o.parameters.full_weight(spec); };
  for (const LinearSpec& linear : o.linears) {
    const Tensor gathered = linear_matrix(view, o.parameters.layout(), linear, o.layer);
    linears_.push_back({.weight = {.value = is_fp8_ ? Tensor() : gathered, .rows = {}, .columns = {}},
                        .gathered = gathered,
                        .scaling = {},
                        .divided = linear.shape.divided});
  }
  if (is_fp8_) make_operands(o, arena);
}

void BlockWeights::make_operands(const Options& o, Arena& arena) {
  const auto allocate = [&] {
    return std::make_unique<BlockWeightMemory>(o.linears, o.recipe, !rows_are_gathered_, o.mode == LlamaMode::kTraining,
                                               keeps_ ? Lifetime::kRun : Lifetime::kBlock, arena);
  };
  std::unique_ptr<BlockWeightMemory> own;
  if (keeps_) own = allocate();
  if (!keeps_ && o.shared == nullptr) o.shared = allocate();
  const BlockWeightMemory& memory = keeps_ ? *own : *o.shared;
  for (size_t i = 0; i < linears_.size(); ++i) {
    auto& [w, gathered, scaling, divided] = linears_[i];
    w.rows = rows_are_gathered_ ? Fp8Operand{.data = gathered, .scale_inv = {}, .scaling = Scaling::kTensor}
                                : memory.rows[i];
    w.columns = memory.columns[i];
    if (!needs_amax(o.recipe)) continue;
    const int64_t linear = first_linear_ + static_cast<int64_t>(i);
    scaling = o.amaxes->weight_scaling(linear);
    if (!rows_are_gathered_) continue;
    w.rows.scale_inv = o.amaxes->weight_scale_inv(linear);
    w.columns.scale_inv = o.amaxes->weight_scale_inv(linear);
  }
}

void BlockWeights::prepare(bool rows, bool columns, Stream& stream) const {
  for (const auto& [w, gathered, scaling, divided] : linears_) {
    const bool wants_columns = columns && w.columns.defined();
    if (rows_are_gathered_) {
      if (wants_columns) fp8_transpose({.out = w.columns.data, .x = w.rows.data}, stream);
    } else {
      quantize_part({.cast = {.rows = rows ? w.rows : Fp8Operand{},
                              .columns = wants_columns ? w.columns : Fp8Operand{},
                              .amax = scaling},
                     .x = gathered},
                    {.divided = divided, .group = tensor_}, stream);
    }
  }
}

// Adds the statistics of rows that were cast on this rank, once per measured step. Rows that are kept may have been
// cast before the step, for example by a validation.
void BlockWeights::add_stats(Stream& stream) {
  if (stats_ == nullptr || rows_are_gathered_) return;
  if (std::exchange(stats_step_, stats_->steps_begun()) == stats_->steps_begun()) return;
  for (size_t i = 0; i < linears_.size(); ++i) {
    stats_->add({.linear = first_linear_ + static_cast<int64_t>(i),
                 .kind = AmaxTable::kWeight,
                 .rows = linears_[i].weight.rows,
                 .x = linears_[i].gathered,
                 .amax = linears_[i].scaling},
                stream);
  }
}

void BlockWeights::prepare_forward(bool fresh, Stream& stream) {
  if (!is_fp8_) return;
  if (fresh || !keeps_) prepare(true, keeps_, stream);
  add_stats(stream);
}

void BlockWeights::prepare_backward(bool reruns, Stream& stream) const {
  if (!is_fp8_ || keeps_) return;
  prepare(reruns, true, stream);
}

}  // namespace octavo
