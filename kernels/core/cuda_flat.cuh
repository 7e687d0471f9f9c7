// Elementwise kernels over flat arrays that start anywhere, as pieces of larger buffers do. A thread takes M elements,
// 16 bytes of an array at a time. Where the arrays are the same number of elements short of their alignment, that many
// are taken one by one and the rest M at a time; where they are not, all are taken one by one.
//
// An op is a struct of its pointers with `template <int M> __device__ void run(int64_t i) const`, which does elements i
// to i + M - 1, M as in launch_flat or 1.
#pragma once

#include <algorithm>

#include "kernels/core/cuda_launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

constexpr int kFlatThreads = 256;

// The number of elements, below M, after which each array is aligned to what M elements of it are moved in; -1: never.
template <int M, typename... T>
int64_t elements_before_alignment(const T*... arrays) {
  for (int64_t head = 0; head < M; ++head) {
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(arrays + head) % std::min<size_t>(16, M * sizeof(T)) == 0) && ...);
    if (aligned) return head;
  }
  return -1;
}

template <int M, typename Op>
__global__ void __launch_bounds__(kFlatThreads) flat_kernel(const Op op, int64_t head, int64_t n) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (thread < head) op.template run<1>(thread);
  const int64_t i = head + thread * M;
  if (i + M <= n) {
    op.template run<M>(i);
  } else {
    for (int64_t j = i; j < n; ++j) op.template run<1>(j);
  }
}

// Runs `op` over elements 0 to n - 1 of `arrays`, all the arrays that it moves M elements of at a time.
template <int M, typename Op, typename... T>
void launch_flat(const char* name, const Op& op, int64_t n, const Stream& stream, const T*... arrays) {
  static_assert(M < kFlatThreads, "the first block takes the elements before the alignment");
  const int64_t head = elements_before_alignment<M>(arrays...);
  const int64_t per_thread = head < 0 ? 1 : M;
  const LaunchShape shape{grid_dim(ceil_div(n, kFlatThreads * per_thread)), kFlatThreads};
  launch(name, head < 0 ? flat_kernel<1, Op> : flat_kernel<M, Op>, shape, stream, op, std::clamp<int64_t>(head, 0, n),
         n);
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
