#include "kernels/attention/cached_sdpa.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace {

constexpr int64_t kMaxCachedHeadDim = 256;

void check_cache(const char* op, const SdpaShape& shape, const SdpaCache& cache, const Tensor& qkv, int64_t position) {
  CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
        "{}: {} query heads for {} kv heads, expected a multiple", op, shape.num_heads, shape.num_kv_heads);
  const int64_t sequences = cache.keys.dim(0);
  const int64_t capacity = cache.keys.dim(1);
  const int64_t width = shape.num_kv_heads * shape.head_dim;
  expect_tensor(cache.keys, "cached keys", qkv.dtype(), {sequences, capacity, width});
  expect_tensor(cache.values, "cached values", qkv.dtype(), {sequences, capacity, width});
  expect_tensor(qkv, "cached attention qkv", qkv.dtype(), {shape.batch * shape.seq_len, shape.qkv_width()});
  CHECK(shape.batch <= sequences && position >= 0 && position + shape.seq_len <= capacity,
        "{}: {} tokens of {} sequences from position {}, but the cache has {} positions of {} sequences", op,
        shape.seq_len, shape.batch, position, capacity, sequences);
}

// Returns the number of query-key pairs of one head: the number of keys that a query attends to, summed over all
// queries.
double visible_keys(const CachedSdpa& args) {
  const auto tokens = static_cast<double>(args.shape.seq_len);
  return static_cast<double>(args.shape.batch) * tokens * (static_cast<double>(args.position) + (tokens + 1) / 2);
}

}  // namespace

namespace cpu {

template <typename T>
void sdpa_cache_append(const SdpaCacheAppend& args) {
  const SdpaShape& s = args.shape;
  const int64_t width = s.num_kv_heads * s.head_dim;
  const int64_t capacity = args.cache.keys.dim(1);
#pragma omp parallel for
  for (int64_t row = 0; row < s.batch * s.seq_len; ++row) {
    const int64_t place = row / s.seq_len * capacity + args.position + row % s.seq_len;
    const T* key = args.qkv.data<T>() + row * s.qkv_width() + s.out_width();
    std::copy_n(key, width, args.cache.keys.data<T>() + place * width);
    std::copy_n(key + width, width, args.cache.values.data<T>() + place * width);
  }
}

// Computes the attention of one query over `keys` rows that are `stride` elements apart. The softmax is computed
// online: sums are rescaled when a larger score appears (Milakov and Gimelshein, arXiv 1805.02867), so scores need no
// memory.
template <typename T>
void attend(T* out, const T* q, const T* key, const T* value, int64_t keys, int64_t stride, int64_t head_dim) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  std::array<float, kMaxCachedHeadDim> sums{};
  float max = -std::numeric_limits<float>::infinity();
  float total = 0;
  for (int64_t j = 0; j < keys; ++j, key += stride, value += stride) {
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t c = 0; c < head_dim; ++c) score += static_cast<float>(q[c]) * static_cast<float>(key[c]);
    score *= scale;
    if (score > max) {
      const float correction = std::exp(max - score);
      total *= correction;
      for (int64_t c = 0; c < head_dim; ++c) sums[static_cast<size_t>(c)] *= correction;
      max = score;
    }
    const float p = std::exp(score - max);
    total += p;
#pragma omp simd
    for (int64_t c = 0; c < head_dim; ++c) sums[static_cast<size_t>(c)] += p * static_cast<float>(value[c]);
  }
  for (int64_t c = 0; c < head_dim; ++c) out[c] = T(sums[static_cast<size_t>(c)] / total);
}

template <typename T>
void cached_sdpa(const CachedSdpa& args) {
  const SdpaShape& s = args.shape;
  const int64_t width = s.num_kv_heads * s.head_dim;
  const int64_t capacity = args.cache.keys.dim(1);
  const int64_t queries_per_kv_head = s.num_heads / s.num_kv_heads;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t row = 0; row < s.batch * s.seq_len; ++row) {
    for (int64_t head = 0; head < s.num_heads; ++head) {
      const int64_t first = row / s.seq_len * capacity * width + head / queries_per_kv_head * s.head_dim;
      attend(args.out.data<T>() + row * s.out_width() + head * s.head_dim,
             args.qkv.data<T>() + row * s.qkv_width() + head * s.head_dim, args.cache.keys.data<T>() + first,
             args.cache.values.data<T>() + first, args.position + row % s.seq_len + 1, width, s.head_dim);
    }
  }
}

}  // namespace cpu

void sdpa_cache_append(const SdpaCacheAppend& args, Stream& stream) {
  check_cache("sdpa_cache_append", args.shape, args.cache, args.qkv, args.position);
  const SdpaShape& s = args.shape;
  const int64_t elements = 2 * s.batch * s.seq_len * s.num_kv_heads * s.head_dim;
  const OpTimer timer(stream, {.name = "sdpa_cache_append",
                               .bytes = 2.0 * static_cast<double>(elements * dtype_bytes(args.qkv.dtype()))});
  if (timer.planned()) return;
  if (ran_on_cuda<cuda::sdpa_cache_append>(args, stream)) return;
  cpu::with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { cpu::sdpa_cache_append<T>(args); });
}

void cached_sdpa(const CachedSdpa& args, Stream& stream) {
  const SdpaShape& s = args.shape;
  check_cache("cached_sdpa", s, args.cache, args.qkv, args.position);
  expect_tensor(args.out, "cached attention out", args.qkv.dtype(), {s.batch * s.seq_len, s.out_width()});
  CHECK(s.head_dim <= kMaxCachedHeadDim, "cached_sdpa: head_dim is {}, expected at most {}", s.head_dim,
        kMaxCachedHeadDim);
  const double rows = 2 * visible_keys(args);  // Rows of keys and of values that a head reads.
  const OpTimer timer(stream, {.name = "cached_sdpa",
                               .flops = 2 * rows * static_cast<double>(s.out_width()),
                               .bytes = rows * static_cast<double>(s.num_kv_heads * s.head_dim) *
                                        static_cast<double>(dtype_bytes(args.qkv.dtype()))});
  if (timer.planned()) return;
  if (ran_on_cuda<cuda::cached_sdpa>(args, stream)) return;
  cpu::with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { cpu::cached_sdpa<T>(args); });
}

}  // namespace octavo
