// The bookkeeping of delayed scaling (Transformer Engine's DelayedScaling): a ring of the amaxes of the last steps.
//
//   history[row] = max(history[row], current), or current if `replaces`; unchanged if current is zero
//   scaling      = factor * max over the rows of history, or kUnknownAmax if that maximum is zero
//   current      = 0
//
// in each slot. A slot belongs to one tensor. A zero does not replace an amax, because it says nothing about the
// tensors of later steps. So a slot that has had a nonzero amax always has one. NaN and infinity count as the largest
// values in a maximum, as in kernels/fp8/fp8.h. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

// Amax of a tensor without a history. The scale of a cast to e4m3 is then 1.
inline constexpr float kUnknownAmax = 448;

struct AmaxHistory {
  Tensor scaling;  // = [slots] float32: amaxes from which the next scales are computed
  Tensor history;  // [rows, slots] float32; only row `row` is written
  Tensor current;  // [slots] float32; read, then set to zero
  int64_t row = 0;
  float factor = 1;       // 2^margin
  bool replaces = false;  // whether a nonzero `current` replaces history[row], instead of their maximum
  Tensor skip = {};       // optional [1] float32: history stays unchanged if not 0 (kernels/optimizer/skip_update.h)
};
void amax_history(const AmaxHistory& args, Stream& stream);

}  // namespace octavo
