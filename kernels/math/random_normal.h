// Normally distributed numbers, made where they are needed (kernels/math/random_numbers.h):
//
//   out[i] = mean + deviation * z(key, index(i))
//
// with z standard normal, so that deviation 0 gives the mean. `out` is a stretch of a part of a matrix, and index(i) of
// the whole one (kernels/math/matrix_stretch.h): however a matrix is divided, each of its elements is the same. Queued
// on `stream`; the same bits on every device, for any number of threads, and from run to run.
#pragma once

#include "core/stream.h"
#include "kernels/math/matrix_stretch.h"

namespace octavo {

struct RandomNormal {
  Tensor out;  // = [n] float32
  uint64_t key = 0;
  float mean = 0;
  float deviation = 1;
  MatrixStretch stretch = {};
};
void random_normal(const RandomNormal& args, Stream& stream);

}  // namespace octavo
