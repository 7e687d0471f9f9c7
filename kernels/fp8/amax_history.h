// The bookkeeping of delayed scaling (Transformer Engine's DelayedScaling): a ring of the amaxes of the last steps.
//
//   history[row] = max(history[row], current), or current;   scaling = factor * max over the rows of history;   current
//   = 0
//
// element by element; NaN and infinity win, as in kernels/fp8/fp8.h. A slot whose history is zero, as its tensor was,
// is scaled by about 1: scaling = kUnknownAmax. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

inline constexpr float kUnknownAmax = 448;  // the largest e4m3

struct AmaxHistory {
  Tensor scaling;  // = [slots] float32
  Tensor history;  // [rows, slots] float32, `row` of it max= or =
  Tensor current;  // in, then zero [slots] float32
  int64_t row = 0;
  float factor = 1;       // 2^margin
  bool replaces = false;  // history[row] = current
  Tensor skip = {};  // optional [1] float32: history[row] stays where it is not 0 (kernels/optimizer/skip_update.h)
};
void amax_history(const AmaxHistory& args, Stream& stream);

}  // namespace octavo
