#include "kernels/layers/cross_entropy.cuh"
#include "kernels/layers/cross_entropy_parallel.h"

namespace octavo::cuda {

namespace {

// A block computes one row and reads it once, with kAtOnce vectors per thread, so that 96 KiB of loads per
// multiprocessor are in flight. This takes 40 registers.
constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kAtOnce = 4;

// Division of a row of logits, which may start at any address, into vectors and single elements. The vectors of N
// elements begin at the first address that is a multiple of 16 bytes. Before and after them are fewer than 2 N single
// elements.
template <typename T, int N>
struct RowElements {
  int head;
  int vectors;
  int singles;

  __device__ RowElements(const T* row, int64_t vocab) {
    const auto past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
    head = N == 1 ? 0 : static_cast<int>(min((kVector<T> - past) % kVector<T>, static_cast<unsigned>(vocab)));
    vectors = static_cast<int>((vocab - head) / N);
    singles = static_cast<int>(vocab) - vectors * N;
  }
  __device__ int vector(int i) const { return head + i * N; }
  __device__ int single(int i) const { return i < head ? i : i + vectors * N; }
};

// ---- Stats

template <typename T>
struct StatsArguments {
  float* stats;
  const T* logits;
  const int32_t* targets;
  int64_t vocab;
  int64_t vocab_begin;
};

// Returns SoftmaxPart::m for the largest logit of a part. The multiplication is rounded separately. Fused into a
// multiply-add, it would not be rounded, and the difference of two equal values would not be 0.
__device__ float exponent_of(float max) { return __fmul_rn(max, kLog2E); }

// The largest logit and the sum of powers of the elements so far.
struct RunningSoftmax {
  float max = kLowest;
  float sum = 0;

  __device__ void raise(float to) {
    sum *= exp2_approximate(exponent_of(max) - exponent_of(to));
    max = to;
  }
};

// Adds the vectors first, first + kThreads, ... of a row, at most kAtOnce of them.
template <typename T, int N>
__device__ void add_vectors(RunningSoftmax& part, const T* logits, const RowElements<T, N>& elements, int first) {
  Vec<T> values[kAtOnce];
  const auto has = [&](int u) { return first + u * kThreads < elements.vectors; };
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    if (has(u)) values[u] = Vec<T>::load(logits + elements.vector(first + u * kThreads));
  }
  float max = part.max;
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    if (has(u)) max = fmaxf(max, largest(values[u]));
  }
  part.raise(max);
  const float m = exponent_of(max);
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    if (!has(u)) break;
    float x[N];
    values[u].widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) part.sum += power(x[j], m);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    cross_entropy_stats_kernel(const StatsArguments<T> args) {
  __shared__ float scratch[2][32];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int32_t target = args.targets[row];
  float* stats = args.stats + row * kCrossEntropyStats;
  if (target < 0) {
    if (thread < kCrossEntropyStats) stats[thread] = 0;
    return;
  }
  const T* logits = args.logits + row * args.vocab;
  const int64_t column = target - args.vocab_begin;
  const float target_logit = column >= 0 && column < args.vocab ? to_float(logits[column]) : 0.0f;
  const RowElements<T, kVector<T>> elements(logits, args.vocab);
  RunningSoftmax part;
  if (thread < elements.singles) {
    const float x = to_float(logits[elements.single(thread)]);
    part.raise(fmaxf(part.max, x));
    part.sum += power(x, exponent_of(part.max));
  }
  for (int first = thread; first < elements.vectors; first += kAtOnce * kThreads) {
    add_vectors(part, logits, elements, first);
  }
  const float max = block_reduce(part.max, kLowest, Max{}, scratch[0]);
  part.raise(max);
  const float sum = block_reduce(part.sum, 0.0f, Add{}, scratch[1]);
  if (thread == 0) {
    stats[0] = max;
    stats[1] = sum;
    stats[2] = target_logit;
  }
}

// ---- Losses and gradients

template <typename T>
struct ParallelArguments {
  float* losses;
  float* z_losses;  // may be null
  T* d_logits;      // may be null, may be `logits`
  const T* logits;
  const int32_t* targets;
  const float* stats;  // [ranks, tokens, 3]
  int64_t ranks;
  int64_t tokens;
  int64_t vocab;
  int64_t vocab_begin;
  float scale;
  float z_loss;
};

struct WholeRow {
  SoftmaxPart softmax;
  float target_logit;
};

// Returns the softmax and the target logit of the whole row, in every lane. All warps combine the parts of the ranks in
// the same order.
__device__ WholeRow combine_ranks(const float* stats, int64_t ranks, int64_t tokens, int64_t row) {
  SoftmaxPart part{kLowest, 0.0f};
  float target_logit = 0;
  for (int64_t rank = threadIdx.x % 32; rank < ranks; rank += 32) {
    const float* of_rank = stats + (rank * tokens + row) * kCrossEntropyStats;
    part = combine(part, {exponent_of(of_rank[0]), of_rank[1]});
    target_logit += of_rank[2];
  }
  const float m = warp_reduce(part.m, Max{});
  return {{m, warp_reduce(part.sum * exp2_approximate(part.m - m), Add{})}, warp_reduce(target_logit, Add{})};
}

template <typename T, int N>
__device__ void store_zeros(T* d_logits, const RowElements<T, N>& elements) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < elements.singles) d_logits[elements.single(thread)] = from_float<T>(0.0f);
  for (int i = thread; i < elements.vectors; i += kThreads) Vec<T, N>{}.store(d_logits + elements.vector(i));
}

// Computes d_logits = inverse * powers, which is the gradient except for the term of the target.
template <typename T, int N>
__device__ void store_softmax(T* d_logits, const T* logits, const RowElements<T, N>& elements, SoftmaxPart row,
                              float inverse) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < elements.singles) {
    const int i = elements.single(thread);
    d_logits[i] = from_float<T>(power(to_float(logits[i]), row.m) * inverse);
  }
  for (int first = thread; first < elements.vectors; first += kAtOnce * kThreads) {
    Vec<T, N> values[kAtOnce];
    const auto has = [&](int u) { return first + u * kThreads < elements.vectors; };
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (has(u)) values[u] = Vec<T, N>::load(logits + elements.vector(first + u * kThreads));
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (!has(u)) break;
      float x[N];
      values[u].widen(x);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = power(x[j], row.m) * inverse;
      Vec<T, N>::narrow(x).store(d_logits + elements.vector(first + u * kThreads));
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    cross_entropy_parallel_kernel(const ParallelArguments<T> args) {
  const int64_t row = blockIdx.x;
  const int32_t target = args.targets[row];
  const T* logits = args.logits + row * args.vocab;
  T* d_logits = args.d_logits == nullptr ? nullptr : args.d_logits + row * args.vocab;
  const RowElements<T, N> elements(logits, args.vocab);
  if (target < 0) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    if (threadIdx.x == 0 && args.z_losses != nullptr) args.z_losses[row] = 0;
    if (d_logits != nullptr) store_zeros(d_logits, elements);
    return;
  }
  const auto [softmax, target_logit] = combine_ranks(args.stats, args.ranks, args.tokens, row);
  if (threadIdx.x == 0) args.losses[row] = loss_of(softmax, target_logit);
  if (threadIdx.x == 0 && args.z_losses != nullptr) args.z_losses[row] = z_loss_of(softmax, args.z_loss);
  if (d_logits == nullptr) return;
  const float inverse = gradient_scale(softmax, args.scale, args.z_loss);
  store_softmax(d_logits, logits, elements, softmax, inverse);
  const int64_t column = target - args.vocab_begin;
  if (column < 0 || column >= args.vocab) return;
  __syncthreads();  // so that this store comes after that of store_softmax
  if (threadIdx.x == 0) d_logits[column] = from_float<T>(power(target_logit, softmax.m) * inverse - args.scale);
}

template <typename T>
void cross_entropy_parallel_rows(const CrossEntropyParallel& args, Stream& stream) {
  const ParallelArguments<T> arguments{.losses = pointer<float>(args.losses),
                                       .z_losses = pointer<float>(args.z_losses),
                                       .d_logits = pointer<T>(args.d_logits),
                                       .logits = pointer<const T>(args.logits),
                                       .targets = pointer<const int32_t>(args.targets),
                                       .stats = pointer<const float>(args.stats),
                                       .ranks = args.stats.dim(0),
                                       .tokens = args.logits.dim(0),
                                       .vocab = args.logits.dim(1),
                                       .vocab_begin = args.vocab_begin,
                                       .scale = args.scale,
                                       .z_loss = args.z_loss};
  // Vectors can be used if logits and d_logits have the same offset from a multiple of 16 bytes.
  const auto past = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  const bool together = arguments.d_logits == nullptr || past(arguments.d_logits) == past(arguments.logits);
  auto* kernel = together ? cross_entropy_parallel_kernel<T, kVector<T>> : cross_entropy_parallel_kernel<T, 1>;
  launch("cross_entropy_parallel", kernel, {grid_dim(arguments.tokens), kThreads}, stream, arguments);
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& args, Stream& stream) {
  with_element(args.logits.dtype(), [&]<typename T>() {
    const StatsArguments<T> arguments{.stats = pointer<float>(args.stats),
                                      .logits = pointer<const T>(args.logits),
                                      .targets = pointer<const int32_t>(args.targets),
                                      .vocab = args.logits.dim(1),
                                      .vocab_begin = args.vocab_begin};
    launch("cross_entropy_stats", cross_entropy_stats_kernel<T>, {grid_dim(args.logits.dim(0)), kThreads}, stream,
           arguments);
  });
}

void cross_entropy_parallel(const CrossEntropyParallel& args, Stream& stream) {
  with_element(args.logits.dtype(), [&]<typename T>() { cross_entropy_parallel_rows<T>(args, stream); });
}

}  // namespace octavo::cuda
