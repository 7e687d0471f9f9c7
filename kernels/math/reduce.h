// Reductions of a tensor to one number on the device. Queued on `stream`; bitwise deterministic (a fixed tree, no
// atomics).
#pragma once

#include "core/stream.h"

namespace octavo {

// Adds the sum of x[i]^2 to out[0]. A thread sums a few elements in float32. These sums are added in float64.
struct SumOfSquares {
  Tensor out;  // += [1] float32
  Tensor x;    // [n] float32 or bfloat16
};
void sum_of_squares(const SumOfSquares& args, Stream& stream);

// Adds the sum of x[i] to out[0].
struct Sum {
  Tensor out;  // += [1] float32
  Tensor x;    // [n] float32
};
void sum(const Sum& args, Stream& stream);

// Returns the size of the scratch that either reduction needs.
int64_t reduce_workspace_bytes(const Stream& stream);

}  // namespace octavo
