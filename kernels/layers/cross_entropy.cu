#include <cooperative_groups.h>
#include <math_constants.h>

#include <algorithm>
#include <cuda/ptx>

#include "kernels/fp8/fp8_cast.cuh"
#include "kernels/layers/cross_entropy.cuh"
#include "kernels/layers/cross_entropy.h"

namespace octavo::cuda {

namespace {

namespace cg = cooperative_groups;
namespace ptx = ::cuda::ptx;

constexpr int kVectorsPerThread = 4;
constexpr int kMaxClusterSize = 8;
constexpr int kMaxRowsPerCluster = 8;
// Number of threads that run on one multiprocessor at a time: threads per block times blocks per multiprocessor.
constexpr int kThreadsAtOnce = 1024;

template <typename T>
struct Arguments {
  float* losses;
  float* z_losses;  // may be null
  T* d_logits;      // may be null, may be `logits`
  const T* logits;
  const int32_t* targets;
  CastArguments cast;  // replaces d_logits
  int64_t tokens;
  int64_t vocab;
  float scale;
  float z_loss;
};

// Shared memory through which the warps of a cluster exchange their parts of a row's softmax. Each warp sends its part
// to every block, where an mbarrier counts the bytes that have arrived. So a warp waits for the parts only. A barrier
// would also wait for the loads of the next row and the stores of the previous row.
//
// Rows use the two buffers in turn. A warp may send its part of the next row while another warp still reads the parts
// of this row, but it cannot go further before all warps have sent their part of the next row.
template <int kThreads>
struct Exchange {
  static constexpr unsigned kWarps = kThreads / 32;
  SoftmaxPart parts[2][kMaxClusterSize * kWarps];
  uint64_t arrived[2];
};

// Initializes the exchange.
// Requires: all threads of the cluster call this function, even if the cluster has one block.
template <int kThreads>
__device__ void initialize(Exchange<kThreads>& exchange, const cg::cluster_group& cluster) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&exchange.arrived[0], 1);
    ptx::mbarrier_init(&exchange.arrived[1], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  cluster.sync();
}

// Returns the softmax of the whole row. All warps combine the parts in the same order. `turn` is the number of calls
// before this one.
// Requires: all lanes of a warp pass the part of their warp.
template <int kThreads>
__device__ SoftmaxPart combine_all(Exchange<kThreads>& exchange, const cg::cluster_group& cluster, SoftmaxPart part,
                                   unsigned turn) {
  constexpr unsigned kWarps = Exchange<kThreads>::kWarps;
  SoftmaxPart* parts = exchange.parts[turn % 2];
  uint64_t* arrived = &exchange.arrived[turn % 2];
  const unsigned count = cluster.num_blocks() * kWarps;
  const unsigned lane = threadIdx.x % 32;
  if (cluster.num_blocks() == 1) {
    if (lane == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
  } else {
    if (threadIdx.x == 0) {
      const auto bytes = static_cast<uint32_t>(count * sizeof(SoftmaxPart));
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, arrived, bytes);
    }
    if (lane < cluster.num_blocks()) {
      float* mine = &parts[cluster.block_rank() * kWarps + threadIdx.x / 32].m;
      const float values[2] = {part.m, part.sum};
      ptx::st_async(cluster.map_shared_rank(mine, lane), values, cluster.map_shared_rank(arrived, lane));
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, arrived, turn / 2 % 2)) {
    }
  }
  SoftmaxPart sum{kLowest, 0.0f};
  for (unsigned i = lane; i < count; i += 32) sum = combine(sum, parts[i]);
  const float m = warp_reduce(sum.m, Max{});
  return {m, warp_reduce(sum.sum * exp2_approximate(sum.m - m), Add{})};
}

// The columns of the vectors that a thread holds: first, first + stride, and so on. Adjacent threads of the cluster
// hold adjacent vectors.
struct Columns {
  int first;
  int stride;
  int vocab;
  __device__ int at(int k) const { return first + k * stride; }
  __device__ bool has(int k) const { return at(k) < vocab; }
};

template <typename T>
struct HeldRow {
  Vec<T> values[kVectorsPerThread];
  int target;
};

template <typename T>
__device__ HeldRow<T> load_row(const Arguments<T>& args, int64_t row, const Columns& columns) {
  HeldRow<T> held;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (columns.has(k)) held.values[k] = Vec<T>::load(args.logits + row * args.vocab + columns.at(k));
  }
  held.target = args.targets[row];
  return held;
}

// Returns the softmax of the elements that the warp holds, in all lanes.
template <typename T>
__device__ SoftmaxPart softmax_of(const HeldRow<T>& held, const Columns& columns) {
  constexpr int N = kVector<T>;
  float max = kLowest;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (columns.has(k)) max = fmaxf(max, largest(held.values[k]));
  }
  const float m = warp_reduce(max, Max{}) * kLog2E;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (!columns.has(k)) break;
    float x[N];
    held.values[k].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += power(x[j], m);
  }
  return {m, warp_reduce(sum, Add{})};
}

// Stores the gradients of the thread's elements. The thread with the target's logit also stores the losses.
template <GradientTo kTo, typename T>
__device__ void store_row(const Arguments<T>& args, int64_t row, const HeldRow<T>& held, SoftmaxPart total,
                          const Columns& columns, float cast_scale) {
  constexpr int N = kVector<T>;
  const float inverse = gradient_scale(total, args.scale, args.z_loss);
  bool holds_target = false;
  float target_logit = 0;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    if (!columns.has(k)) break;
    float x[N];
    held.values[k].widen(x);
    const int target = held.target - columns.at(k);
    const bool in_vector = target >= 0 && target < N;
    if (in_vector) {
      holds_target = true;
#pragma unroll
      for (int j = 0; j < N; ++j) target_logit = j == target ? x[j] : target_logit;
    }
    if (args.d_logits == nullptr) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = power(x[j], total.m) * inverse;
    if (in_vector) {
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] -= j == target ? args.scale : 0.0f;
    }
    const Vec<T> gradients[] = {Vec<T>::narrow(x)};
    const int64_t i = row * args.vocab + columns.at(k);
    if constexpr (kTo == GradientTo::kMemory) {
      gradients[0].store(args.d_logits + i);
    } else {
      *reinterpret_cast<uint2*>(args.cast.rows + i) = cast_row<format_of(kTo)>(gradients, cast_scale);
    }
  }
  if (!holds_target) return;
  args.losses[row] = loss_of(total, target_logit);
  if (args.z_losses != nullptr) args.z_losses[row] = z_loss_of(total, args.z_loss);
}

// Stores zeros as the losses and gradients of a row without a target.
template <GradientTo kTo, typename T>
__device__ void store_ignored_row(const Arguments<T>& args, int64_t row, const Columns& columns) {
  if (columns.first == 0) args.losses[row] = 0;
  if (columns.first == 0 && args.z_losses != nullptr) args.z_losses[row] = 0;
  const Vec<T> zero{make_uint4(0, 0, 0, 0)};
  for (int i = columns.first; args.d_logits != nullptr && i < columns.vocab; i += columns.stride) {
    if constexpr (kTo == GradientTo::kMemory) {
      zero.store(args.d_logits + row * args.vocab + i);
    } else {
      *reinterpret_cast<uint2*>(args.cast.rows + row * args.vocab + i) = make_uint2(0, 0);
    }
  }
}

// Computes a few rows per cluster of blocks and reads each row once. A thread keeps kVectorsPerThread vectors of a row
// in registers and computes the gradient from them. Meanwhile it loads the next row into other registers, so that 64
// KiB of loads per multiprocessor are always in flight. This takes 64 registers.
template <typename T, GradientTo kTo, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreadsAtOnce / kThreads)
    cross_entropy_cluster_kernel(const Arguments<T> args, int rows_per_cluster) {
  float cast_scale = 0;
  if constexpr (kTo != GradientTo::kMemory) cast_scale = find_tensor_scale<format_of(kTo)>(args.cast);
  __shared__ Exchange<kThreads> exchange;
  const cg::cluster_group cluster = cg::this_cluster();
  const Columns columns{.first = static_cast<int>(cluster.block_rank() * kThreads + threadIdx.x) * kVector<T>,
                        .stride = static_cast<int>(cluster.num_blocks()) * kThreads * kVector<T>,
                        .vocab = static_cast<int>(args.vocab)};
  const int64_t begin = static_cast<int64_t>(blockIdx.x / cluster.num_blocks()) * rows_per_cluster;
  const int64_t end = min(begin + rows_per_cluster, args.tokens);
  unsigned turn = 0;
  HeldRow<T> held = load_row(args, begin, columns);
  initialize(exchange, cluster);
  for (int64_t row = begin; row < end; ++row) {
    const HeldRow<T> next = row + 1 < end ? load_row(args, row + 1, columns) : held;
    if (held.target < 0) {
      store_ignored_row<kTo>(args, row, columns);
    } else {
      const SoftmaxPart total = combine_all(exchange, cluster, softmax_of(held, columns), turn++);
      store_row<kTo>(args, row, held, total, columns, cast_scale);
    }
    held = next;
  }
}

// Computes one row per block, for any vocabulary and alignment. It reads the row three times, after the first time from
// the cache.
template <typename T, GradientTo kTo>
__global__ void __launch_bounds__(1024) cross_entropy_row_kernel(const Arguments<T> args) {
  __shared__ float scratch[2][32];
  float cast_scale = 0;
  if constexpr (kTo != GradientTo::kMemory) cast_scale = find_tensor_scale<format_of(kTo)>(args.cast);
  const int64_t row = blockIdx.x;
  const int32_t target = args.targets[row];
  const T* logits = args.logits + row * args.vocab;
  const auto store = [&](int64_t i, float gradient) {
    if constexpr (kTo == GradientTo::kMemory) {
      args.d_logits[row * args.vocab + i] = from_float<T>(gradient);
    } else {
      const float x = to_float(from_float<T>(gradient));
      args.cast.rows[row * args.vocab + i] =
          static_cast<uint8_t>(cast_pair<format_of(kTo)>(x, cast_scale, 0.0f, cast_scale));
    }
  };
  if (target < 0) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    if (threadIdx.x == 0 && args.z_losses != nullptr) args.z_losses[row] = 0;
    for (int64_t i = threadIdx.x; args.d_logits != nullptr && i < args.vocab; i += blockDim.x) store(i, 0.0f);
    return;
  }
  const float target_logit = to_float(logits[target]);
  float max = kLowest;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) max = fmaxf(max, to_float(logits[i]));
  const float m = block_reduce(max, kLowest, Max{}, scratch[0]) * kLog2E;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < args.vocab; i += blockDim.x) sum += power(to_float(logits[i]), m);
  sum = block_reduce(sum, 0.0f, Add{}, scratch[1]);
  const SoftmaxPart total{m, sum};
  if (threadIdx.x == 0) args.losses[row] = loss_of(total, target_logit);
  if (threadIdx.x == 0 && args.z_losses != nullptr) args.z_losses[row] = z_loss_of(total, args.z_loss);
  const float inverse = gradient_scale(total, args.scale, args.z_loss);
  for (int64_t i = threadIdx.x; args.d_logits != nullptr && i < args.vocab; i += blockDim.x) {
    const float one_hot = i == target ? args.scale : 0.0f;
    store(i, power(to_float(logits[i]), m) * inverse - one_hot);
  }
}

template <typename T>
__global__ void mask_padding_kernel(T* logits, int64_t vocab, int64_t columns, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t padding = columns - vocab;
  if (i < elements) logits[i / padding * columns + vocab + i % padding] = from_float<T>(-CUDART_INF_F);
}

// Returns the size of the smallest cluster whose registers hold a row, or 0 if there is none.
template <typename T>
unsigned cluster_size_for(int64_t vocab, int threads) {
  for (unsigned size = 1; size <= kMaxClusterSize; size *= 2) {
    if (vocab <= static_cast<int64_t>(size) * threads * kVectorsPerThread * kVector<T>) return size;
  }
  return 0;
}

template <typename T, GradientTo kTo>
void cross_entropy_rows(const CrossEntropy& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const Arguments<T> arguments{.losses = pointer<float>(args.losses),
                               .z_losses = pointer<float>(args.z_losses),
                               .d_logits = pointer<T>(args.d_logits),
                               .logits = pointer<const T>(args.logits),
                               .targets = pointer<const int32_t>(args.targets),
                               .cast = cast_arguments(args.cast, tokens, args.logits.dim(1), {}),
                               .tokens = tokens,
                               .vocab = args.logits.dim(1),
                               .scale = args.scale,
                               .z_loss = args.z_loss};
  const auto launch_clusters = [&](auto* kernel, int threads) {
    const unsigned size = cluster_size_for<T>(arguments.vocab, threads);
    // A cluster has several rows, so that it can load ahead, and several clusters run one after the other, so that few
    // multiprocessors are idle at the end.
    const int64_t at_once = std::max<int64_t>(stream.multiprocessors() * kThreadsAtOnce / threads / size, 1);
    const int64_t rows = std::clamp<int64_t>(tokens / (4 * at_once), 1, kMaxRowsPerCluster);
    const LaunchShape shape{grid_dim(ceil_div(tokens, rows) * size), dim3(static_cast<unsigned>(threads)), 0, size};
    launch("cross_entropy", kernel, shape, stream, arguments, static_cast<int>(rows));
  };
  const bool aligned =
      rows_are_aligned<T>(arguments.vocab, {arguments.logits, arguments.d_logits}) &&
      (kTo == GradientTo::kMemory || rows_are_aligned<uint8_t>(arguments.vocab, {arguments.cast.rows}));
  if (aligned && cluster_size_for<T>(arguments.vocab, 128) == 1) {
    launch_clusters(cross_entropy_cluster_kernel<T, kTo, 128>, 128);
  } else if (aligned && cluster_size_for<T>(arguments.vocab, 512) > 0) {
    launch_clusters(cross_entropy_cluster_kernel<T, kTo, 512>, 512);
  } else if (aligned && cluster_size_for<T>(arguments.vocab, 1024) > 0) {
    launch_clusters(cross_entropy_cluster_kernel<T, kTo, 1024>, 1024);
  } else {
    launch("cross_entropy", cross_entropy_row_kernel<T, kTo>, {grid_dim(tokens), 1024}, stream, arguments);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& args, Stream& stream) {
  if (!args.cast.defined()) {
    return with_element(args.logits.dtype(),
                        [&]<typename T>() { cross_entropy_rows<T, GradientTo::kMemory>(args, stream); });
  }
  if (args.cast.format() == DType::kFloat8E4M3) {
    return cross_entropy_rows<__nv_bfloat16, GradientTo::kE4M3>(args, stream);
  }
  cross_entropy_rows<__nv_bfloat16, GradientTo::kE5M2>(args, stream);
}

void mask_padding(const MaskPadding& args, Stream& stream) {
  const int64_t columns = args.logits.dim(1);
  const int64_t elements = args.logits.dim(0) * (columns - args.vocab);
  if (elements == 0) return;
  constexpr int kThreads = 256;
  with_element(args.logits.dtype(), [&]<typename T>() {
    launch("mask_padding", mask_padding_kernel<T>, {grid_dim(ceil_div(elements, kThreads)), kThreads}, stream,
           pointer<T>(args.logits), args.vocab, columns, elements);
  });
}

}  // namespace octavo::cuda
