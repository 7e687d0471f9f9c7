// Casts: out[i] = x[i], rounded to the dtype of out (nearest even). Float32 and bfloat16 in any combination, [n] each,
// starting at any element. It is fastest if both start equally many elements after a multiple of 8. Queued on `stream`;
// deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Cast {
  Tensor out;  // =
  Tensor x;
};
void cast(const Cast& args, Stream& stream);

}  // namespace octavo
