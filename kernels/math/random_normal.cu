#include "kernels/cuda/flat.cuh"
#include "kernels/math/random_normal.h"
#include "kernels/math/random_numbers.h"
#include "kernels/math/rounded_math.cuh"

namespace octavo::cuda {

namespace {

constexpr int kPerThread = 4;

struct Fill {
  float* out;
  uint64_t key;
  float mean;
  float deviation;
  MatrixRange range;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float values[M];
    uint64_t index[M];
    range.indices(i, index);
#pragma unroll
    for (int j = 0; j < M; ++j) {
      const uint64_t bits = random_bits(key, index[j]);
      values[j] = RoundedMath::fma(deviation, standard_normal<RoundedMath>(bits), mean);
    }
    store_floats(out + i, values);
  }
};

}  // namespace

void random_normal(const RandomNormal& args, Stream& stream) {
  const Fill fill{.out = pointer<float>(args.out),
                  .key = args.key,
                  .mean = args.mean,
                  .deviation = args.deviation,
                  .range = args.range};
  launch_flat<kPerThread>("random_normal", fill, args.out.numel(), stream, fill.out);
}

}  // namespace octavo::cuda
