// Normally distributed numbers, made where they are needed (kernels/random_numbers.h):
//
//   out[i] = mean + deviation * z(key, index(i))
//
// with z standard normal, so that deviation 0 gives the mean. `out` is a stretch of a part of a matrix: its element i
// is element begin + i of the part, whose rows of `columns` elements lie `row_stride` apart in the matrix,
//
//   index(i) = first_index + (begin + i) / columns * row_stride + (begin + i) % columns
//
// (equal ones: all in one row). So however a matrix is divided, each of its elements is the same. Queued on `stream`;
// the same bits on every device, for any number of threads, and from run to run.
#pragma once

#include "core/stream.h"

namespace octavo {

struct RandomNormal {
  Tensor out;  // = [n] float32
  uint64_t key = 0;
  float mean = 0;
  float deviation = 1;
  int64_t begin = 0;
  int64_t first_index = 0;
  int64_t columns = 1;
  int64_t row_stride = 1;
};
void random_normal(const RandomNormal& args, Stream& stream);

}  // namespace octavo
