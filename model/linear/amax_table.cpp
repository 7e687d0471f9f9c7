#include "model/linear/amax_table.h"

#include <cmath>

#include "kernels/fp8/amax_history.h"
#include "kernels/fp8/fp8_shard.h"

namespace octavo {

AmaxTable::AmaxTable(const PrecisionConfig& config, int64_t linears, Arena& arena, int64_t in_flight)
    : linears_(linears),
      weight_scaling_(arena.allocate("fp8 weight amaxes", DType::kFloat32, {linears})),
      weight_scale_inv_(arena.allocate("fp8 weight scales", DType::kFloat32, {linears, kScaleStride})),
      factor_(static_cast<float>(std::ldexp(1.0, static_cast<int>(config.amax_margin)))) {
  const bool delays = traits(config.linear).uses_history;
  for (int64_t i = 0; i < in_flight; ++i) {
    current_.push_back(arena.allocate("fp8 amaxes", DType::kFloat32, {linears * kKinds}));
    if (delays) continue;
    gradient_bound_factors_.push_back(arena.allocate("fp8 gradient bound factors", DType::kFloat32, {linears}));
  }
  if (!delays) return;
  scaling_ = arena.allocate("fp8 delayed amaxes", DType::kFloat32, {linears * kKinds});
  history_ = arena.allocate("fp8 amax history", DType::kFloat32, {config.amax_history, linears * kKinds});
}

Tensor AmaxTable::slot(const Tensor& table, int64_t linear, Kind kind) const {
  const int64_t index = kind * linears_ + linear;
  return table.rows(index, index + 1);
}

void AmaxTable::begin_weights(Stream& stream) { stream.zero(weights()); }

void AmaxTable::compute_weight_scales(Stream& stream) {
  const Tensor& source = uses_history_ ? scaling_ : current_[0];
  stream.copy(weight_scaling_, source.rows(kWeight * linears_, kKinds * linears_));
  fp8_scale_inv({.scale_inv = weight_scale_inv_, .amax = weight_scaling_, .format = DType::kFloat8E4M3}, stream);
}

void AmaxTable::begin_micro_batch(bool first, int64_t in_flight, Stream& stream) {
  const Tensor& current = current_[static_cast<size_t>(in_flight)];
  if (!first && uses_history_) return;  // The amaxes of a step are the maxima over its micro-batches.
  if (!first && delayed()) return collect(current, stream);
  stream.zero(current.rows(0, kWeight * linears_));
  if (!gradient_bound_factors_.empty()) stream.zero(gradient_bound_factors_[static_cast<size_t>(in_flight)]);
}

void AmaxTable::collect(const Tensor& current, Stream& stream) {
  amax_history({.scaling = scaling_, .history = history_, .current = current, .row = row_, .factor = factor_}, stream);
}

// Moves the amaxes of all micro-batches to the slots of number 0, from the other slots and from the row of the history
// in which begin_micro_batch has collected those of earlier micro-batches.
void AmaxTable::take_back_row(Stream& stream) {
  if (uses_history_) return;
  const Tensor row = history_.rows(row_, row_ + 1);
  for (const Tensor& current : current_) collect(current, stream);
  stream.copy(current_[0], row);
  stream.zero(row);
}

void AmaxTable::forget_micro_batches(Stream& stream) {
  if (delayed()) take_back_row(stream);
}

void AmaxTable::end_step(const Tensor& skip, Communicator* ranks, Stream& stream) {
  if (!delayed()) return;
  take_back_row(stream);
  if (ranks != nullptr) ranks->all_reduce_max(current_[0], stream);
  amax_history({.scaling = scaling_,
                .history = history_,
                .current = current_[0],
                .row = row_,
                .factor = factor_,
                .replaces = true,
                .skip = skip},
               stream);
  row_ = (row_ + 1) % history_.dim(0);
  if (!uses_history_) find_history(stream);
}

void AmaxTable::find_history(Stream& stream) {
  uses_history_ = true;
  if (stream.is_planned()) return;  // A dry-run stream has no values. Its steps use the history.
  const Tensor slots = history_.view({history_.numel()});
  std::vector<float> values(static_cast<size_t>(slots.numel()));
  stream.copy(values.data(), slots.raw(), slots.bytes());
  stream.synchronize();
  uses_history_ = knows_all(values);
  if (!uses_history_) stream.zero(history_);
}

// Returns whether any linear has an amax of its input or output gradient in the history, and whether each such linear
// has amaxes of all three tensors.
bool AmaxTable::knows_all(std::span<const float> history) const {
  const int64_t width = kKinds * linears_;
  const auto has = [&](int64_t linear, Kind kind) {
    auto slot = static_cast<size_t>(kind * linears_ + linear);
    while (slot < history.size() && history[slot] == 0) slot += static_cast<size_t>(width);
    return slot < history.size();
  };
  bool any = false;
  for (int64_t linear = 0; linear < linears_; ++linear) {
    const int64_t tensors = int64_t{has(linear, kInput)} + int64_t{has(linear, kOutputGradient)};
    if (tensors == 0) continue;
    if (tensors == 1 || !has(linear, kWeight)) return false;
    any = true;
  }
  return any;
}

void AmaxTable::set_steps_done(int64_t steps) {
  if (delayed()) row_ = steps % history_.dim(0);
}

void AmaxTable::restore(Stream& stream) {
  if (!delayed()) return;
  stream.zero(current_[0]);
  collect(current_[0], stream);  // Adds only zeros, and makes the scales.
  find_history(stream);
}

}  // namespace octavo
