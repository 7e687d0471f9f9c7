#include "core/cuda_flat.cuh"
#include "kernels/add.h"

namespace octavo::cuda {

namespace {

template <typename T>
struct AddOp {
  float* out;
  const T* x;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float sum[M];
    float values[M];
    load_floats(out + i, sum);
    load_floats(x + i, values);
#pragma unroll
    for (int j = 0; j < M; ++j) sum[j] += values[j];
    store_floats(out + i, sum);
  }
};

}  // namespace

// Not this namespace's Add, the operator of reductions.
void add(const octavo::Add& args, Stream& stream) {
  with_element(args.x.dtype(), [&]<typename T>() {
    const AddOp<T> op{pointer<float>(args.out), pointer<const T>(args.x)};
    launch_flat<8>("add", op, args.x.numel(), stream, op.out, op.x);
  });
}

}  // namespace octavo::cuda
