#include "kernels/cast.h"
#include "kernels/core/cuda_launch.cuh"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 256;

// M elements a thread: 8 where both sides are aligned, else 1.
template <int M, typename Out, typename In>
__global__ void cast_kernel(Out* out, const In* x, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * M;
  if (i + M <= n) {
    float values[M];
    load_floats(x + i, values);
    store_floats(out + i, values);
  } else {
    for (int64_t j = i; j < n; ++j) out[j] = from_float<Out>(to_float(x[j]));
  }
}

template <typename Out, typename In>
void cast_elements(const Cast& args, Stream& stream) {
  const int64_t n = args.x.numel();
  const bool aligned = rows_are_aligned<Out>(0, {args.out.raw(), args.x.raw()});
  const int64_t per_thread = aligned ? 8 : 1;
  const LaunchShape shape{grid_dim(ceil_div(n, kThreads * per_thread)), kThreads};
  auto* kernel = aligned ? cast_kernel<8, Out, In> : cast_kernel<1, Out, In>;
  launch("cast", kernel, shape, stream, pointer<Out>(args.out), pointer<const In>(args.x), n);
}

}  // namespace

void cast(const Cast& args, Stream& stream) {
  with_element(args.out.dtype(), [&]<typename Out>() {
    with_element(args.x.dtype(), [&]<typename In>() { cast_elements<Out, In>(args, stream); });
  });
}

}  // namespace octavo::cuda
