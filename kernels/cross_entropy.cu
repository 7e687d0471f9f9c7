#include <cooperative_groups.h>

#include <algorithm>
#include <cfloat>
#include <map>
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
  int64_t tokens;
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

// A cluster's blocks share a row: each thread keeps kVectorsPerThread vectors of it in registers, so that the row is
// read once; the blocks exchange their parts of the softmax through shared memory. A cluster walks over rows, the next
// one being on its way while it works on one. Blocks of 1024 threads have no registers left for that.
template <typename T>
struct RowPart {
  Vec<T> values[kVectorsPerThread];

  __device__ void load(const T* row, int64_t first, int64_t stride, int64_t vocab) {
#pragma unroll
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const int64_t i = first + k * stride;
      if (i < vocab) values[k] = Vec<T>::load_streaming(row + i);
    }
  }

  // f(x, i) for each vector x of the row, widened, and its first column i.
  template <typename F>
  __device__ void for_each(int64_t first, int64_t stride, int64_t vocab, F f) const {
#pragma unroll
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const int64_t i = first + k * stride;
      if (i >= vocab) break;
      float x[kVector<T>];
      values[k].widen(x);
      f(x, i);
    }
  }
};

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads <= 512 ? 1024 / kThreads : 1)
    cross_entropy_cluster_kernel(const Arguments<T> args) {
  constexpr int N = kVector<T>;
  constexpr bool kPrefetch = kThreads <= 512;
  __shared__ SoftmaxPart parts[2][kMaxClusterSize];
  __shared__ float scratch[2][32];
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned cluster_size = cluster.num_blocks();
  const unsigned rank = cluster.block_rank();
  const int64_t row_step = gridDim.x / cluster_size;
  // A thread's vectors are those at first, first + stride, ...: neighbours across the whole cluster.
  const int64_t first = (static_cast<int64_t>(rank) * kThreads + threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(cluster_size) * kThreads * N;

  int64_t row = blockIdx.x / cluster_size;
  RowPart<T> part;
  part.load(args.logits + row * args.vocab, first, stride, args.vocab);
  cluster.sync();  // shared memory of another block may be written once that block runs
  for (int turn = 0; row < args.tokens; row += row_step) {
    const T* logits = args.logits + row * args.vocab;
    T* d_logits = args.d_logits == nullptr ? nullptr : args.d_logits + row * args.vocab;
    const int32_t target = args.targets[row];
    const bool last = row + row_step >= args.tokens;
    RowPart<T> next;
    if (kPrefetch && !last) next.load(logits + row_step * args.vocab, first, stride, args.vocab);

    if (target < 0) {
      if (rank == 0 && threadIdx.x == 0) args.losses[row] = 0;
      const Vec<T> zero{make_uint4(0, 0, 0, 0)};
      for (int64_t i = first; d_logits != nullptr && i < args.vocab; i += stride) zero.store(d_logits + i);
    } else {
      const bool writes_loss = rank == 0 && threadIdx.x == 0;
      const float target_logit = writes_loss ? to_float(logits[target]) : 0.0f;  // before anyone overwrites it
      float max = -FLT_MAX;
      part.for_each(first, stride, args.vocab, [&](const float(&x)[N], int64_t) {
#pragma unroll
        for (int j = 0; j < N; ++j) max = fmaxf(max, x[j]);  // skips NaN, which the sum then shows
      });
      max = block_reduce(max, -FLT_MAX, Max{}, scratch[0]);
      float sum = 0;
      part.for_each(first, stride, args.vocab, [&](const float(&x)[N], int64_t) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum += __expf(x[j] - max);
      });
      sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);

      // Each block tells all blocks its part; all combine the parts in the same order. What is told for the next row
      // goes to the other half of `parts`, as a slow block may still be reading this one.
      if (threadIdx.x < cluster_size) *cluster.map_shared_rank(&parts[turn][rank], threadIdx.x) = {max, sum};
      cluster.sync();
      SoftmaxPart total = parts[turn][0];
      for (unsigned r = 1; r < cluster_size; ++r) total = combine(total, parts[turn][r]);
      turn ^= 1;
      if (writes_loss) args.losses[row] = logf(total.sum) + total.max - target_logit;

      if (d_logits != nullptr) {
        const float inverse = args.scale / total.sum;
        part.for_each(first, stride, args.vocab, [&](float(&x)[N], int64_t i) {
#pragma unroll
          for (int j = 0; j < N; ++j) {
            x[j] = __expf(x[j] - total.max) * inverse - (i + j == target ? args.scale : 0.0f);
          }
          Vec<T>::narrow(x).store(d_logits + i);
        });
      }
    }
    if (kPrefetch) {
      part = next;
    } else if (!last) {
      part.load(logits + row_step * args.vocab, first, stride, args.vocab);
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

// How many clusters of a shape the GPU holds at once, asked for once and kept with the stream.
class ResidentClusters {
 public:
  explicit ResidentClusters(Stream&) {}

  template <typename Kernel>
  int count(Kernel* kernel, const LaunchShape& shape) {
    const auto [found, missing] = counts_.try_emplace({reinterpret_cast<const void*>(kernel), shape.cluster_size}, 0);
    if (missing) found->second = std::max(1, max_active_clusters("cross_entropy", kernel, shape));
    return found->second;
  }

 private:
  std::map<std::pair<const void*, unsigned>, int> counts_;
};

template <typename T>
void cross_entropy_rows(const CrossEntropy& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const Arguments<T> arguments{.losses = pointer<float>(args.losses),
                               .d_logits = pointer<T>(args.d_logits),
                               .logits = pointer<const T>(args.logits),
                               .targets = pointer<const int32_t>(args.targets),
                               .tokens = tokens,
                               .vocab = args.logits.dim(1),
                               .scale = args.scale};
  const auto launch_clusters = [&](auto* kernel, int threads) {
    LaunchShape shape{1, dim3(static_cast<unsigned>(threads)), 0, cluster_size_for<T>(arguments.vocab, threads)};
    const int resident = stream.state<ResidentClusters>().count(kernel, shape);
    shape.grid = grid_dim(std::min<int64_t>(tokens, resident) * shape.cluster_size);
    launch("cross_entropy", kernel, shape, stream, arguments);
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
