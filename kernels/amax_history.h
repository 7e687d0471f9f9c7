// The bookkeeping of delayed scaling (Transformer Engine's DelayedScaling): a ring of the amaxes of the last steps.
//
//   history[row] = max(history[row], current);   scaling = factor * max over the rows of history;   current = 0
//
// element by element; NaN and infinity win, as in kernels/fp8.h. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct AmaxHistory {
  Tensor scaling;  // = [slots] float32
  Tensor history;  // [rows, slots] float32, `row` of it max=
  Tensor current;  // in, then zero [slots] float32
  int64_t row = 0;
  float factor = 1;  // 2^margin
};
void amax_history(const AmaxHistory& args, Stream& stream);

}  // namespace octavo
