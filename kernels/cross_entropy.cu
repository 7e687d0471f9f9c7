#include <cooperative_groups.h>

#include <cfloat>
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

// The largest logit of a part of a row and the sum of exp(logit - max) over that part. `max` starts at the lowest
// finite number, which keeps exp(max - max) out of NaN for a part without elements.
struct SoftmaxPart {
  float max;
  float sum;
};

__device__ SoftmaxPart combine(SoftmaxPart a, SoftmaxPart b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
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
  const int32_t target = args.targets[row];
  const T* logits = args.logits + row * args.vocab;
  T* d_logits = args.d_logits == nullptr ? nullptr : args.d_logits + row * args.vocab;
  // A block's vectors are those at first, first + stride, ...: neighbours across the whole cluster.
  const int64_t first = (static_cast<int64_t>(rank) * kThreads + threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(cluster_size) * kThreads * N;

  if (target < 0) {
    if (rank == 0 && threadIdx.x == 0) args.losses[row] = 0;
    const Vec<T> zero{make_uint4(0, 0, 0, 0)};
    for (int64_t i = first; d_logits != nullptr && i < args.vocab; i += stride) zero.store(d_logits + i);
    return;
  }

  // Shared memory of another block may be written once that block runs; by then the loads are on their way.
  auto all_blocks_run = cluster.barrier_arrive();
  Vec<T> values[kVectorsPerThread];
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const int64_t i = first + k * stride;
    if (i < args.vocab) values[k] = Vec<T>::load(logits + i);
  }
  const float target_logit = to_float(logits[target]);
  float max = -FLT_MAX;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (first + k * stride >= args.vocab) break;
    float x[N];
    values[k].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) max = fmaxf(max, x[j]);  // skips NaN, which the sum then shows
  }
  max = block_reduce(max, -FLT_MAX, Max{}, scratch[0]);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (first + k * stride >= args.vocab) break;
    float x[N];
    values[k].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += __expf(x[j] - max);
  }
  sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);

  // Each block tells all blocks its part; all combine the parts in the same order.
  cluster.barrier_wait(std::move(all_blocks_run));
  if (threadIdx.x < cluster_size) *cluster.map_shared_rank(&parts[rank], threadIdx.x) = {max, sum};
  cluster.sync();
  SoftmaxPart total = parts[0];
  for (unsigned r = 1; r < cluster_size; ++r) total = combine(total, parts[r]);
  if (rank == 0 && threadIdx.x == 0) args.losses[row] = logf(total.sum) + total.max - target_logit;

  if (d_logits != nullptr) {
    const float inverse = args.scale / total.sum;
#pragma unroll
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const int64_t i = first + k * stride;
      if (i >= args.vocab) break;
      float x[N];
      values[k].widen(x);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        x[j] = __expf(x[j] - total.max) * inverse - (i + j == target ? args.scale : 0.0f);
      }
      Vec<T>::narrow(x).store(d_logits + i);
    }
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
  float max = -FLT_MAX;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) max = fmaxf(max, to_float(logits[i]));
  max = block_reduce(max, -FLT_MAX, Max{}, scratch[0]);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) sum += __expf(to_float(logits[i]) - max);
  sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);
  if (threadIdx.x == 0) args.losses[row] = logf(sum) + max - target_logit;
  const float inverse = args.scale / sum;
  for (int64_t i = threadIdx.x; d_logits != nullptr && i < args.vocab; i += blockDim.x) {
    const float one_hot = i == target ? args.scale : 0.0f;
    d_logits[i] = from_float<T>(__expf(to_float(logits[i]) - max) * inverse - one_hot);
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
