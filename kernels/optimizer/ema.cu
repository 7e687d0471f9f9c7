#include "kernels/cuda/flat.cuh"
#include "kernels/optimizer/cuda_optimizer.cuh"
#include "kernels/optimizer/ema.h"

namespace octavo::cuda {

namespace {

struct EmaOp {
  float* ema;
  const float* x;
  const float* skip;  // may be null
  float rate;

  template <int M>
  __device__ void operator()(int64_t i) const {
    if (skips(skip)) return;
    float average[M];
    float values[M];
    load_floats(ema + i, average);
    load_floats(x + i, values);
#pragma unroll
    for (int j = 0; j < M; ++j) average[j] += rate * (values[j] - average[j]);
    store_floats(ema + i, average);
  }
};

}  // namespace

void ema(const Ema& args, Stream& stream) {
  const EmaOp op{pointer<float>(args.ema), pointer<const float>(args.x), pointer<const float>(args.skip),
                 static_cast<float>(1 - args.decay)};
  launch_flat<8>("ema", op, args.x.numel(), stream, op.ema, op.x);
}

}  // namespace octavo::cuda
