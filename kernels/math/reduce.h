// Reductions to one number on the device. Queued on `stream`; bitwise deterministic (a fixed tree, no atomics).
#pragma once

#include "core/stream.h"

namespace octavo {

// out[0] += sum of x[i]^2, accumulated in float32 within a thread's few elements and float64 across them.
struct SumOfSquares {
  Tensor out;  // += [1] float32
  Tensor x;    // [n] float32 or bfloat16
};
void sum_of_squares(const SumOfSquares& args, Stream& stream);

// out[0] += sum of x[i].
struct Sum {
  Tensor out;  // += [1] float32
  Tensor x;    // [n] float32
};
void sum(const Sum& args, Stream& stream);

// Scratch of either.
int64_t reduce_workspace_bytes(const Stream& stream);

}  // namespace octavo
