// out[i] = x[i] rounded to out's dtype (nearest even). float32 and bfloat16 in any combination, [n] each,
// starting at any element; fastest where both are as many elements away from a multiple of 8. Queued; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Cast {
  Tensor out;  // =
  Tensor x;
};
void cast(const Cast& args, Stream& stream);

}  // namespace octavo
