// Casts: out[i] = x[i], rounded to the dtype of out (nearest even). Both tensors are [n], float32 or bfloat16 in any
// combination, and may start at any element. The cast is fastest if both have the same offset, in elements, from a
// multiple of 8 elements. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Cast {
  Tensor out;  // =
  Tensor x;
};
void cast(const Cast& args, Stream& stream);

}  // namespace octavo
