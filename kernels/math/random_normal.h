// Normally distributed random numbers (kernels/math/random_numbers.h):
//
//   out[i] = mean + deviation * z(key, index(i))
//
// where z is standard normal. A deviation of 0 fills `out` with the mean. `out` is a range of a block of a matrix, and
// index(i) is the index in the whole matrix (kernels/math/matrix_range.h), so every element has the same value for
// any division of the matrix. Queued on `stream`. The bits are equal on every device, for any number of threads, and in
// every run.
#pragma once

#include "core/stream.h"
#include "kernels/math/matrix_range.h"

namespace octavo {

struct RandomNormal {
  Tensor out;  // = [n] float32
  uint64_t key = 0;
  float mean = 0;
  float deviation = 1;  // Standard deviation of the numbers.
  MatrixRange range = {};
};
void random_normal(const RandomNormal& args, Stream& stream);

}  // namespace octavo
