// out[i] = x[i] rounded to out's dtype (nearest even). float32 and bfloat16 in any combination, [n] each. Queued.
#pragma once

#include "kernels/core/stream.h"

namespace octavo {

struct Cast {
  Tensor out;  // =
  Tensor x;
};
void cast(const Cast& args, Stream& stream);

}  // namespace octavo
