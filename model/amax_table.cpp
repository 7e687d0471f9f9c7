#include "model/amax_table.h"

#include <cmath>

#include "kernels/amax_history.h"

namespace octavo {

AmaxTable::AmaxTable(const PrecisionConfig& config, int64_t linears, Arena& arena)
    : linears_(linears),
      current_(arena.allocate("fp8 amaxes", DType::kFloat32, {linears * kKinds})),
      factor_(static_cast<float>(std::ldexp(1.0, static_cast<int>(config.amax_margin)))) {
  if (config.linear != LinearPrecision::kFp8Delayed) return;
  scaling_ = arena.allocate("fp8 delayed amaxes", DType::kFloat32, {linears * kKinds});
  history_ = arena.allocate("fp8 amax history", DType::kFloat32, {config.amax_history, linears * kKinds});
}

Tensor AmaxTable::slot(const Tensor& table, int64_t linear, Kind kind) const {
  const int64_t index = kind * linears_ + linear;
  return table.rows(index, index + 1);
}

void AmaxTable::begin_weights(Stream& stream) { stream.zero(current_.rows(kWeight * linears_, kKinds * linears_)); }

void AmaxTable::begin_micro_batch(bool first, Stream& stream) {
  if (first || !delayed()) stream.zero(current_.rows(0, kWeight * linears_));
}

void AmaxTable::end_step(int64_t step, Communicator& communicator, Stream& stream) {
  if (!delayed()) return;
  communicator.all_reduce_max(current_, stream);
  amax_history({.scaling = scaling_,
                .history = history_,
                .current = current_,
                .row = (step - 1) % history_.dim(0),
                .factor = factor_},
               stream);
  uses_history_ = true;
}

void AmaxTable::restore(Stream& stream) {
  if (!delayed()) return;
  // Taking the history's first row in once more changes nothing in it and makes the scales.
  stream.copy(current_, history_.rows(0, 1).view({current_.numel()}));
  amax_history({.scaling = scaling_, .history = history_, .current = current_, .row = 0, .factor = factor_}, stream);
  uses_history_ = true;
}

}  // namespace octavo
