// Exponential moving average of the weights, as a step behind the optimizer's:
//
//   ema = decay ema + (1 - decay) x, computed as ema + (1 - decay) (x - ema), so that an average of equal values is
//   exact
//
// Where `skip` says so, nothing changes. Elementwise over flat buffers; queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Ema {
  Tensor ema;        // in place [n] float32
  Tensor x;          // [n] float32
  Tensor skip = {};  // optional [1] float32: nothing is updated where it is not 0 (kernels/optimizer/skip_update.h)
  double decay = 0;  // from 0 to 1; in float64, since what is left to 1 may be little
};
void ema(const Ema& args, Stream& stream);

}  // namespace octavo
