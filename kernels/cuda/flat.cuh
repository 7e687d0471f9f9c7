// Elementwise kernels over flat arrays that may start at any address, such as slices of larger buffers. A thread
// processes M elements and loads or stores 16 bytes of an array at a time. If all arrays need the same number of
// elements to reach alignment, those elements are processed one by one and the rest M at a time. Otherwise all elements
// are processed one by one.
//
// An op is called as op.operator()<M>(i) for elements i to i + M - 1, and as op.operator()<1>(i) for element i.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

constexpr int kFlatThreads = 256;

struct FlatShape {
  // Whether a thread can process M elements at a time. Otherwise it processes single elements.
  bool aligned;
  int64_t head;  // Number of elements before the first aligned element.
  LaunchShape launch;
};

// Returns the launch shape for n elements. `arrays` are all arrays that are accessed M elements at a time; null
// pointers are ignored.
template <int M, typename... T>
FlatShape flat_shape(int64_t n, const T*... arrays) {
  static_assert(M <= kFlatThreads, "the first block takes the elements before the alignment");
  const auto aligned_at = [&](int64_t i) {
    const auto aligned = [&](const auto* array) {
      return array == nullptr || reinterpret_cast<uintptr_t>(array + i) % std::min<size_t>(16, M * sizeof(*array)) == 0;
    };
    return (aligned(arrays) && ...);
  };
  int64_t head = 0;
  while (head < M && !aligned_at(head)) ++head;
  const bool aligned = head < M;
  return {.aligned = aligned,
          .head = aligned ? std::min(head, n) : 0,
          .launch = {grid_dim(ceil_div(n, kFlatThreads * (aligned ? M : 1))), kFlatThreads}};
}

// Applies `op` to the calling thread's share of n elements. The first `head` elements are processed one by one.
template <int M, typename Op>
__device__ void for_flat_elements(int64_t head, int64_t n, const Op& op) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (thread < head) op.template operator()<1>(thread);
  const int64_t i = head + thread * M;
  if (i + M <= n) {
    op.template operator()<M>(i);
  } else {
    for (int64_t j = i; j < n; ++j) op.template operator()<1>(j);
  }
}

template <int M, typename Op>
__global__ void __launch_bounds__(kFlatThreads) flat_kernel(const Op op, int64_t head, int64_t n) {
  for_flat_elements<M>(head, n, op);
}

template <int M, typename Op, typename... T>
void launch_flat(const char* name, const Op& op, int64_t n, const Stream& stream, const T*... arrays) {
  const FlatShape shape = flat_shape<M>(n, arrays...);
  launch(name, shape.aligned ? flat_kernel<M, Op> : flat_kernel<1, Op>, shape.launch, stream, op, shape.head, n);
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
