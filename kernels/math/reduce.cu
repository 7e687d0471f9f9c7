#include "kernels/cuda/launch.cuh"
#include "kernels/math/math_cuda.h"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct Square {
  __device__ float operator()(float x) const { return x * x; }
};

// Sets partial[block] = the sum of term(x[i]) over the block's share. A thread sums kUnroll * N elements in float32,
// and adds these sums in float64.
template <int N, typename T, typename Term>
__global__ void __launch_bounds__(kThreads) partial_sums_kernel(double* partial, const T* x, int64_t n, Term term) {
  double total = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kUnroll * N;
  const int64_t vector_end = n - n % N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x) * N; i < vector_end;
       i += stride) {
    float values[kUnroll][N] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t j = i + static_cast<int64_t>(u) * kThreads * N;
      if (j < vector_end) Vec<T, N>::load_streaming(x + j).widen(values[u]);
    }
    float sum = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum += term(values[u][j]);
    }
    total += static_cast<double>(sum);
  }
  const int64_t tail = vector_end + threadIdx.x;
  if (blockIdx.x == 0 && tail < n) total += static_cast<double>(term(to_float(x[tail])));

  __shared__ double scratch[32];
  total = block_reduce(total, 0.0, Add{}, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads) add_partial_sums_kernel(float* out, const double* partial, int count) {
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) total += partial[i];
  __shared__ double scratch[32];
  total = block_reduce(total, 0.0, Add{}, scratch);
  if (threadIdx.x == 0) *out += static_cast<float>(total);
}

template <typename T, typename Term>
void add_sum(const Tensor& out, const Tensor& x, Term term, Stream& stream) {
  if (x.numel() == 0) return;
  const int blocks = stream.multiprocessors() * kReduceBlocksPerMultiprocessor;
  auto* partial = static_cast<double*>(stream.workspace(reduce_workspace_bytes(stream)));
  auto* kernel =
      rows_are_aligned<T>(0, {x.raw()}) ? partial_sums_kernel<kVector<T>, T, Term> : partial_sums_kernel<1, T, Term>;
  launch("reduce", kernel, {grid_dim(blocks), kThreads}, stream, partial, pointer<const T>(x), x.numel(), term);
  launch("reduce", add_partial_sums_kernel, {1, kThreads}, stream, pointer<float>(out), partial, blocks);
}

}  // namespace

void sum_of_squares(const SumOfSquares& args, Stream& stream) {
  with_element(args.x.dtype(), [&]<typename T>() { add_sum<T>(args.out, args.x, Square{}, stream); });
}

void sum(const Sum& args, Stream& stream) { add_sum<float>(args.out, args.x, Identity{}, stream); }

}  // namespace octavo::cuda
