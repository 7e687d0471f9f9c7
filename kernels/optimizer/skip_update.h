// Decides on the device whether an optimizer step is skipped, so that the host does not have to wait:
//
//   skip = 1 where the loss or the gradient norm is not finite, or the loss is above its limit; else 0
//
// with loss = loss_scale * sum of loss_sums, and the norm's square in grad_sum_of_squares. Queued on `stream`;
// deterministic.
#pragma once

#include <limits>

#include "core/stream.h"

namespace octavo {

struct SkipUpdate {
  Tensor skip;                 // = [1] float32
  Tensor loss_sums;            // [n] float32, of which the loss is the sum
  Tensor grad_sum_of_squares;  // [1] float32
  float loss_scale = 1;        // the inverse of the number of targets
  float loss_limit = std::numeric_limits<float>::infinity();
};
void skip_update(const SkipUpdate& args, Stream& stream);

}  // namespace octavo
