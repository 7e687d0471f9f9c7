// Exponential moving average of the weights, updated after each step of the optimizer:
//
//   ema = decay ema + (1 - decay) x
//
// It is computed as ema + (1 - decay) (x - ema), so that an average of equal values is exact. If `skip` is not 0,
// nothing changes. Elementwise over flat buffers; queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Ema {
  Tensor ema;        // in place [n] float32
  Tensor x;          // [n] float32
  Tensor skip = {};  // optional [1] float32 (kernels/optimizer/skip_update.h)
  double decay = 0;  // 0 to 1; in float64, because 1 - decay may be small
};
void ema(const Ema& args, Stream& stream);

}  // namespace octavo
