#include "core/cuda_flat.cuh"
#include "kernels/random_normal.h"
#include "kernels/random_numbers.h"
#include "kernels/rounded_math.cuh"

namespace octavo::cuda {

namespace {

constexpr int kPerThread = 4;

struct Fill {
  float* out;
  uint64_t key;
  float mean;
  float deviation;
  int64_t begin;
  int64_t first_index;
  int64_t columns;
  int64_t row_stride;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float values[M];
#pragma unroll
    for (int j = 0; j < M; ++j) {
      const uint64_t bits = random_bits(key, index(begin + i + j));
      values[j] = RoundedMath::fma(deviation, standard_normal<RoundedMath>(bits), mean);
    }
    store_floats(out + i, values);
  }

  __device__ uint64_t index(int64_t place) const {
    const int64_t offset = columns == row_stride ? place : place / columns * row_stride + place % columns;
    return static_cast<uint64_t>(first_index + offset);
  }
};

}  // namespace

void random_normal(const RandomNormal& args, Stream& stream) {
  const Fill fill{.out = pointer<float>(args.out),
                  .key = args.key,
                  .mean = args.mean,
                  .deviation = args.deviation,
                  .begin = args.begin,
                  .first_index = args.first_index,
                  .columns = args.columns,
                  .row_stride = args.row_stride};
  launch_flat<kPerThread>("random_normal", fill, args.out.numel(), stream, fill.out);
}

}  // namespace octavo::cuda
