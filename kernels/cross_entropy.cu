#include <cooperative_groups.h>

#include <utility>

#include "kernels/core/cuda_launch.cuh"
#include "kernels/cross_entropy.h"

namespace octavo::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kVectorsPerThread = 4;
constexpr int kMaxClusterSize = 8;

template <typename T>
struct Arguments {
  float* losses;
  T* d_logits;  // may be null, may be `logits`
  const T* logits;
  const int32_t* targets;
  int64_t vocab;
  float scale;
};

// Exponentials are powers of two, one multiply-add and one special-function instruction each: e^(x - max) is
// 2^(x log2(e) - m) with m = max log2(e). Only the rounded m is used, so its rounding error cancels.
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLowest = -1e38f;  // its m is finite too, which keeps m - m out of NaN where there are no elements

// Results under 2^-126 become 0.
__device__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A part of a row: m of its largest logit and the sum of 2^(x log2(e) - m) over it.
struct SoftmaxPart {
  float m;
  float sum;
};

__device__ float power(float logit, float m) { return exp2_approximate(fmaf(logit, kLog2E, -m)); }

__device__ SoftmaxPart combine(SoftmaxPart a, SoftmaxPart b) {
  const float m = fmaxf(a.m, b.m);
  return {m, a.sum * exp2_approximate(a.m - m) + b.sum * exp2_approximate(b.m - m)};
}

__device__ float loss_of(SoftmaxPart row, float target_logit) {
  return logf(row.sum) + fmaf(row.m, kLn2, -target_logit);
}

// Maxima skip NaN, which the sum then shows.
__device__ float largest(const Vec<float>& v) {
  float x[4];
  v.widen(x);
  return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
}
__device__ float largest(const Vec<__nv_bfloat16>& v) {
  const auto pair = [](uint32_t word) { return *reinterpret_cast<const __nv_bfloat162*>(&word); };
  const __nv_bfloat162 max = __hmax2(__hmax2(pair(v.bits.x), pair(v.bits.y)), __hmax2(pair(v.bits.z), pair(v.bits.w)));
  return fmaxf(__low2float(max), __high2float(max));
}

// One row by one cluster of blocks, read once: each thread keeps kVectorsPerThread vectors of it in registers, the
// blocks exchange their parts of the softmax through shared memory, and the gradient is made from the registers.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads <= 512 ? 1536 / kThreads : 1)
    cross_entropy_cluster_kernel(const Arguments<T> args) {
  constexpr int N = kVector<T>;
  __shared__ SoftmaxPart parts[kMaxClusterSize];
  __shared__ float scratch[2][32];
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned cluster_size = cluster.num_blocks();
  const unsigned rank = cluster.block_rank();
  const int64_t row = blockIdx.x / cluster_size;
  const T* logits = args.logits + row * args.vocab;
  T* d_logits = args.d_logits == nullptr ? nullptr : args.d_logits + row * args.vocab;
  // A thread's vectors are those at first, first + stride, ...: neighbours across the whole cluster.
  const int vocab = static_cast<int>(args.vocab);
  const int first = static_cast<int>(rank * kThreads + threadIdx.x) * N;
  const int stride = static_cast<int>(cluster_size) * kThreads * N;

  Vec<T> values[kVectorsPerThread];
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (first + k * stride < vocab) values[k] = Vec<T>::load(logits + first + k * stride);
  }
  const int target = args.targets[row];
  if (target < 0) {
    if (rank == 0 && threadIdx.x == 0) args.losses[row] = 0;
    const Vec<T> zero{make_uint4(0, 0, 0, 0)};
    for (int i = first; d_logits != nullptr && i < vocab; i += stride) zero.store(d_logits + i);
    return;
  }
  auto all_blocks_run = cluster.barrier_arrive();  // shared memory of another block may be written once it runs
  const bool writes_loss = rank == 0 && threadIdx.x == 0;
  const float target_logit = writes_loss ? to_float(logits[target]) : 0.0f;  // before anyone overwrites it

  float max = kLowest;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (first + k * stride < vocab) max = fmaxf(max, largest(values[k]));
  }
  const float m = block_reduce(max, kLowest, Max{}, scratch[0]) * kLog2E;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (first + k * stride >= vocab) break;
    float x[N];
    values[k].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += power(x[j], m);
  }
  sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);

  // Each block tells all blocks its part; all combine the parts in the same order.
  cluster.barrier_wait(std::move(all_blocks_run));
  if (threadIdx.x < cluster_size) *cluster.map_shared_rank(&parts[rank], threadIdx.x) = {m, sum};
  cluster.sync();
  SoftmaxPart total = parts[0];
  for (unsigned r = 1; r < cluster_size; ++r) total = combine(total, parts[r]);
  if (writes_loss) args.losses[row] = loss_of(total, target_logit);
  if (d_logits == nullptr) return;

  const float inverse = args.scale / total.sum;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const int i = first + k * stride;
    if (i >= vocab) break;
    float x[N];
    values[k].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = power(x[j], total.m) * inverse;
    if (target >= i && target < i + N) {
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] -= j == target - i ? args.scale : 0.0f;
    }
    Vec<T>::narrow(x).store(d_logits + i);
  }
}

// Any vocabulary and alignment: one block a row, which it reads three times (from the cache after the first).
template <typename T>
__global__ void __launch_bounds__(1024) cross_entropy_row_kernel(const Arguments<T> args) {
  __shared__ float scratch[2][32];
  const int64_t row = blockIdx.x;
  const int32_t target = args.targets[row];
  const T* logits = args.logits + row * args.vocab;
  T* d_logits = args.d_logits == nullptr ? nullptr : args.d_logits + row * args.vocab;
  if (target < 0) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    for (int64_t i = threadIdx.x; d_logits != nullptr && i < args.vocab; i += blockDim.x) {
      d_logits[i] = from_float<T>(0.0f);
    }
    return;
  }
  const float target_logit = to_float(logits[target]);
  float max = kLowest;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) max = fmaxf(max, to_float(logits[i]));
  const float m = block_reduce(max, kLowest, Max{}, scratch[0]) * kLog2E;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) sum += power(to_float(logits[i]), m);
  sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);
  if (threadIdx.x == 0) args.losses[row] = loss_of({m, sum}, target_logit);
  const float inverse = args.scale / sum;
  for (int64_t i = threadIdx.x; d_logits != nullptr && i < args.vocab; i += blockDim.x) {
    const float one_hot = i == target ? args.scale : 0.0f;
    d_logits[i] = from_float<T>(power(to_float(logits[i]), m) * inverse - one_hot);
  }
}

// The smallest cluster whose registers hold a row; 0 when none does.
template <typename T>
unsigned cluster_size_for(int64_t vocab, int threads) {
  for (unsigned size = 1; size <= kMaxClusterSize; size *= 2) {
    if (vocab <= static_cast<int64_t>(size) * threads * kVectorsPerThread * kVector<T>) return size;
  }
  return 0;
}

template <typename T>
void cross_entropy_rows(const CrossEntropy& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const Arguments<T> arguments{.losses = pointer<float>(args.losses),
                               .d_logits = pointer<T>(args.d_logits),
                               .logits = pointer<const T>(args.logits),
                               .targets = pointer<const int32_t>(args.targets),
                               .vocab = args.logits.dim(1),
                               .scale = args.scale};
  const auto launch_clusters = [&](auto* kernel, int threads) {
    const unsigned size = cluster_size_for<T>(arguments.vocab, threads);
    launch("cross_entropy", kernel, {grid_dim(tokens * size), dim3(static_cast<unsigned>(threads)), 0, size}, stream,
           arguments);
  };
  const bool aligned = rows_are_aligned<T>(arguments.vocab, {arguments.logits, arguments.d_logits});
  if (aligned && cluster_size_for<T>(arguments.vocab, 128) == 1) {
    launch_clusters(cross_entropy_cluster_kernel<T, 128>, 128);
  } else if (aligned && cluster_size_for<T>(arguments.vocab, 512) > 0) {
    launch_clusters(cross_entropy_cluster_kernel<T, 512>, 512);
  } else if (aligned && cluster_size_for<T>(arguments.vocab, 1024) > 0) {
    launch_clusters(cross_entropy_cluster_kernel<T, 1024>, 1024);
  } else {
    launch("cross_entropy", cross_entropy_row_kernel<T>, {grid_dim(tokens), 1024}, stream, arguments);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& args, Stream& stream) {
  with_element(args.logits.dtype(), [&]<typename T>() { cross_entropy_rows<T>(args, stream); });
}

}  // namespace octavo::cuda
