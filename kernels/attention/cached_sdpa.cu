#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/launch.cuh"

namespace octavo::cuda {

namespace {

constexpr int kCopyThreads = 256;
// Warps per block. A block computes one query head of one token.
constexpr int kWarps = 16;
constexpr int kKeysAtOnce = 4;  // Keys per warp whose loads are in flight at once.

struct CachedSdpaSizes {
  int64_t rows;      // Number of new tokens of all sequences.
  int64_t seq_len;   // Number of new tokens per sequence.
  int64_t position;  // Position of the first new token.
  int64_t capacity;
  int num_heads;
  int num_kv_heads;
  int head_dim;

  __host__ __device__ int64_t kv_width() const { return static_cast<int64_t>(num_kv_heads) * head_dim; }
  __host__ __device__ int64_t out_width() const { return static_cast<int64_t>(num_heads) * head_dim; }
  __host__ __device__ int64_t qkv_width() const { return out_width() + 2 * kv_width(); }
  // Returns the first row of the token's sequence in the cache.
  __device__ int64_t first_row(int64_t row) const { return row / seq_len * capacity; }
  __device__ int64_t position_of(int64_t row) const { return position + row % seq_len; }
};

CachedSdpaSizes sizes_of(const SdpaShape& s, const SdpaCache& cache, int64_t position) {
  return {.rows = s.batch * s.seq_len,
          .seq_len = s.seq_len,
          .position = position,
          .capacity = cache.keys.dim(1),
          .num_heads = static_cast<int>(s.num_heads),
          .num_kv_heads = static_cast<int>(s.num_kv_heads),
          .head_dim = static_cast<int>(s.head_dim)};
}

// Each thread copies N elements of a key and of its value.
template <typename T, int N>
__global__ void __launch_bounds__(kCopyThreads) append_kernel(T* keys, T* values, const T* qkv, CachedSdpaSizes s) {
  const int64_t width = s.kv_width();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x) * N;
  if (i >= s.rows * width) return;
  const int64_t row = i / width;
  const int64_t column = i % width;
  const int64_t place = (s.first_row(row) + s.position_of(row)) * width + column;
  const T* key = qkv + row * s.qkv_width() + s.out_width() + column;
  Vec<T, N>::load(key).store(keys + place);
  Vec<T, N>::load(key + width).store(values + place);
}

// The E elements of a head that one lane holds.
template <typename T, int E>
struct alignas(sizeof(T) * E) LaneElements {
  T elements[E];

  __device__ static void load(const T* p, float (&x)[E]) {
    const LaneElements read = *reinterpret_cast<const LaneElements*>(p);
#pragma unroll
    for (int i = 0; i < E; ++i) x[i] = to_float(read.elements[i]);
  }
};

// Online softmax over the keys that a warp has processed: the largest score, the sum of p = exp(score - max), and the
// sum of p times the values.
template <int E>
struct RunningSoftmax {
  float max = -INFINITY;
  float total = 0;
  float sums[E] = {};

  __device__ void raise(float new_max) {
    const float correction = expf(max - new_max);  // The correction is 0 for the first key.
    total *= correction;
#pragma unroll
    for (int i = 0; i < E; ++i) sums[i] *= correction;
    max = new_max;
  }
};

// The warps of a block process kKeysAtOnce keys each, in turn. The elements of a key are divided among the lanes of a
// warp.
template <typename T, int E>
__device__ RunningSoftmax<E> attend(const float (&q)[E], const T* key, const T* value, int64_t keys, int64_t width) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  RunningSoftmax<E> softmax;
  for (int64_t first = warp * kKeysAtOnce; first < keys; first += kWarps * kKeysAtOnce) {
    float scores[kKeysAtOnce];
    float values[kKeysAtOnce][E];
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      const int64_t j = min(first + u, keys - 1);  // Index clamped to the last key, so that the load is valid.
      float x[E];
      LaneElements<T, E>::load(key + j * width, x);
      LaneElements<T, E>::load(value + j * width, values[u]);
      scores[u] = 0;
#pragma unroll
      for (int i = 0; i < E; ++i) scores[u] += q[i] * x[i];
    }
    float max = softmax.max;
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      const float score = warp_reduce(scores[u], Add());
      scores[u] = first + u < keys ? score : -INFINITY;
      max = fmaxf(max, scores[u]);
    }
    softmax.raise(max);
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      const float p = expf(scores[u] - max);
      softmax.total += p;
#pragma unroll
      for (int i = 0; i < E; ++i) softmax.sums[i] += p * values[u][i];
    }
  }
  return softmax;
}

template <typename T, int E>
__global__ void __launch_bounds__(kWarps * 32)
    cached_sdpa_kernel(T* out, const T* qkv, const T* keys, const T* values, CachedSdpaSizes s) {
  constexpr int kHeadDim = 32 * E;
  __shared__ float all_max[kWarps];
  __shared__ float all_totals[kWarps];
  __shared__ float all_sums[kWarps][kHeadDim];
  const int64_t row = blockIdx.x / s.num_heads;
  const int head = static_cast<int>(blockIdx.x % s.num_heads);
  const int kv_head = head / (s.num_heads / s.num_kv_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane_begin = thread % 32 * E;

  float q[E];
  LaneElements<T, E>::load(qkv + row * s.qkv_width() + head * kHeadDim + lane_begin, q);
#pragma unroll
  for (int i = 0; i < E; ++i) q[i] *= rsqrtf(static_cast<float>(kHeadDim));
  const int64_t begin = s.first_row(row) * s.kv_width() + kv_head * kHeadDim + lane_begin;
  const RunningSoftmax<E> own = attend<T, E>(q, keys + begin, values + begin, s.position_of(row) + 1, s.kv_width());

  all_max[warp] = own.max;
  all_totals[warp] = own.total;
#pragma unroll
  for (int i = 0; i < E; ++i) all_sums[warp][lane_begin + i] = own.sums[i];
  __syncthreads();
  if (thread >= kHeadDim) return;
  float max = -INFINITY;
  for (int w = 0; w < kWarps; ++w) max = fmaxf(max, all_max[w]);
  float total = 0;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    const float correction = expf(all_max[w] - max);  // 0 for a warp without keys.
    total += correction * all_totals[w];
    sum += correction * all_sums[w][thread];
  }
  out[row * s.out_width() + head * kHeadDim + thread] = from_float<T>(sum / total);
}

template <typename T, int E>
void start(const CachedSdpa& args, Stream& stream) {
  const CachedSdpaSizes sizes = sizes_of(args.shape, args.cache, args.position);
  const LaunchShape shape{grid_dim(sizes.rows * sizes.num_heads), dim3(kWarps * 32)};
  launch("cached_sdpa", cached_sdpa_kernel<T, E>, shape, stream, pointer<T>(args.out), pointer<const T>(args.qkv),
         pointer<const T>(args.cache.keys), pointer<const T>(args.cache.values), sizes);
}

}  // namespace

void sdpa_cache_append(const SdpaCacheAppend& args, Stream& stream) {
  const CachedSdpaSizes sizes = sizes_of(args.shape, args.cache, args.position);
  with_element(args.qkv.dtype(), [&]<typename T>() {
    const bool aligned =
        rows_are_aligned<T>(sizes.head_dim, {args.qkv.raw(), args.cache.keys.raw(), args.cache.values.raw()});
    const int elements = aligned ? kVector<T> : 1;
    const LaunchShape shape{grid_dim(ceil_div(sizes.rows * sizes.kv_width(), int64_t{kCopyThreads} * elements)),
                            dim3(kCopyThreads)};
    launch("sdpa_cache_append", aligned ? append_kernel<T, kVector<T>> : append_kernel<T, 1>, shape, stream,
           pointer<T>(args.cache.keys), pointer<T>(args.cache.values), pointer<const T>(args.qkv), sizes);
  });
}

void cached_sdpa(const CachedSdpa& args, Stream& stream) {
  with_element(args.qkv.dtype(), [&]<typename T>() {
    const int64_t head_dim = args.shape.head_dim;
    if (!rows_are_aligned<T>(head_dim, {args.qkv.raw(), args.cache.keys.raw(), args.cache.values.raw()})) {
      check(cudaErrorMisalignedAddress, "attention over a cache whose rows are not aligned to 16 bytes");
    }
    if (head_dim == 32) return start<T, 1>(args, stream);
    if (head_dim == 64) return start<T, 2>(args, stream);
    if (head_dim == 128) return start<T, 4>(args, stream);
    check(cudaErrorInvalidValue, "attention over a cache with heads other than 32, 64 and 128");
  });
}

}  // namespace octavo::cuda
