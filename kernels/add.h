// out[i] += x[i] in float32, as a reduce-scattered gradient is added to a rank's shard. [n] each, starting at any
// element. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct Add {
  Tensor out;  // += float32
  Tensor x;    // float32 or bfloat16
};
void add(const Add& args, Stream& stream);

}  // namespace octavo
