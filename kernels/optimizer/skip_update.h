// Decides on the device whether an optimizer step is skipped, so that the host does not have to wait:
//
//   skip = 1 if the loss or the gradient norm is not finite, or if the loss is above its limit; else 0
//
// with loss = inverse_targets * sum of loss_sums. The ops of an optimizer that take `skip` change no state if it is not
// 0. Queued on `stream`; deterministic.
#pragma once

#include <limits>

#include "core/stream.h"

namespace octavo {

struct SkipUpdate {
  Tensor skip;                 // = [1] float32
  Tensor loss_sums;            // [n] float32, summed losses of the datasets
  Tensor grad_sum_of_squares;  // [1] float32, square of the gradient norm
  float inverse_targets = 1;   // 1 / number of targets
  float loss_limit = std::numeric_limits<float>::infinity();
};
void skip_update(const SkipUpdate& args, Stream& stream);

}  // namespace octavo
