#include <algorithm>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/rotated.cuh"
#include "kernels/cuda/amax.cuh"
#include "kernels/fp8/fp8_cast.cuh"
#include "kernels/fp8/fp8_cuda.h"

namespace octavo::cuda {

namespace {

constexpr int kThreadsPerToken = 64;
constexpr int kTokensPerBlock = 4;

struct RopeSizes {
  int64_t tokens;
  int64_t seq_len;
  int64_t row_elements;  // Number of elements of a packed row.
  int rotated_heads;     // Number of query and key heads, which are adjacent.
  int head_dim;
  float direction;  // Factor of the angles; -1 for the inverse rotation.
};

// Each thread loads N angles of its token and rotates their pairs in every `slots`-th head. Returns the amax of the
// thread's results, with kAmax including the value heads. Without kStore the results are not written.
template <typename T, int N, bool kAmax, bool kStore>
__device__ Magnitude<T> rotate(T* qkv, const float* table, const RopeSizes& sizes) {
  constexpr int kHeadsAtOnce = kAmax ? 4 : 3;  // Number of heads whose loads are in flight at once.
  Magnitude<T> largest;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.y;
  if (token >= sizes.tokens) return largest;
  const int half = sizes.head_dim / 2;
  const int heads = kAmax ? static_cast<int>(sizes.row_elements / sizes.head_dim) : sizes.rotated_heads;
  const int lanes = half / N;
  const int lanes_at_once = min(lanes, kThreadsPerToken);
  const int slots = kThreadsPerToken / lanes_at_once;
  const int slot = static_cast<int>(threadIdx.x) / lanes_at_once;
  if (slot >= slots) return largest;
  T* row = qkv + token * sizes.row_elements;
  const float* angles = table + (token % sizes.seq_len) * sizes.head_dim;

  for (int lane = static_cast<int>(threadIdx.x) % lanes_at_once; lane < lanes; lane += lanes_at_once) {
    const int i = lane * N;
    float cosine[N];
    float sine[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      cosine[j] = angles[i + j];
      sine[j] = angles[half + i + j] * sizes.direction;
    }
    for (int first = slot; first < heads; first += slots * kHeadsAtOnce) {
      Vec<T, N> low[kHeadsAtOnce];
      Vec<T, N> high[kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * slots;
        if (head >= heads) break;
        const T* p = row + static_cast<int64_t>(head) * sizes.head_dim + i;
        low[u] = Vec<T, N>::load(p);
        high[u] = Vec<T, N>::load(p + half);
      }
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * slots;
        if (head >= heads) break;
        if (kAmax && head >= sizes.rotated_heads) {
          largest.add(low[u]);
          largest.add(high[u]);
          continue;
        }
        float a[N];
        float b[N];
        low[u].widen(a);
        high[u].widen(b);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float x = a[j];
          a[j] = rotated(x, -b[j], cosine[j], sine[j]);
          b[j] = rotated(b[j], x, cosine[j], sine[j]);
        }
        [[maybe_unused]] T* p = row + static_cast<int64_t>(head) * sizes.head_dim + i;
        const auto rotated_low = Vec<T, N>::narrow(a);
        const auto rotated_high = Vec<T, N>::narrow(b);
        if constexpr (kStore) {
          rotated_low.store(p);
          rotated_high.store(p + half);
        }
        largest.add(rotated_low);
        largest.add(rotated_high);
      }
    }
  }
  return largest;
}

template <typename T, int N, bool kAmax, bool kStore = true>
__global__ void __launch_bounds__(kThreadsPerToken* kTokensPerBlock, 3)
    rope_kernel(T* qkv, const float* table, float* amax, const RopeSizes sizes) {
  const Magnitude<T> largest = rotate<T, N, kAmax, kStore>(qkv, table, sizes);
  if constexpr (kAmax) update_amax(amax, largest.float_bits());
}

// ---- Rotation with a cast

struct RotatedSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = 3;
  const Element* qkv;
  const float* table;
  RopeSizes sizes;

  // Location of the other element of a pair and of the pair's angle.
  struct Pair {
    int64_t other;  // Distance in columns to the other element of the pair.
    int64_t angle;  // Index of the pair's angle in a row of the table.
    float direction;
  };
  __device__ Pair pair_of(int64_t column) const {
    const int half = sizes.head_dim / 2;
    const auto i = static_cast<int>(column % sizes.head_dim);
    return i < half ? Pair{half, i, -sizes.direction} : Pair{-half, i - half, sizes.direction};
  }
  __device__ bool is_rotated(int64_t column) const { return column < sizes.rotated_heads * sizes.head_dim; }
  __device__ const float* cosines_of(int64_t token) const { return table + token % sizes.seq_len * sizes.head_dim; }

  // No head spans two tiles, and half a head is 1, 2, 4 or 8 thread tiles (rope_casts_heads_of). The other elements of
  // the pairs are in the thread tile of another thread of the warp.
  __device__ void make(ThreadTile<Element> (&parts)[kParts], int64_t m, int64_t n, const ThreadPosition& at) const {
    ThreadTile<Element>& thread_tile = parts[0];
    const int64_t column = at.column + at.thread_column * kThreadTile;
    thread_tile = load_thread_tile(qkv, m, n, n, at);
    const bool rotates = is_rotated(column);
    const Pair pair = pair_of(column);
    const int neighbour = sizes.head_dim / 2 / kThreadTile;
    const int64_t row = at.row + at.thread_row * kThreadTile;
#pragma unroll
    for (int r = 0; r < kThreadTile; ++r) {
      Vec<Element> others[ThreadTile<Element>::kVectors];
#pragma unroll
      for (int v = 0; v < ThreadTile<Element>::kVectors; ++v)
        others[v] = of_neighbour(thread_tile.rows[r][v], neighbour);
      if (!rotates || row + r >= m) continue;
      const float* cosines = cosines_of(row + r) + pair.angle;
      float x[kThreadTile];
      thread_tile.widen(r, x);
#pragma unroll
      for (int v = 0; v < ThreadTile<Element>::kVectors; ++v) {
        float other[kVector<Element>];
        others[v].widen(other);
#pragma unroll
        for (int i = 0; i < kVector<Element>; i += kVector<float>) {
          const int first = v * kVector<Element> + i;
          float cosine[kVector<float>];
          float sine[kVector<float>];
          Vec<float>::load(cosines + first).widen(cosine);
          Vec<float>::load(cosines + sizes.head_dim / 2 + first).widen(sine);
#pragma unroll
          for (int j = 0; j < kVector<float>; ++j) {
            x[first + j] = rotated(x[first + j], other[i + j], cosine[j], sine[j] * pair.direction);
          }
        }
      }
      thread_tile.narrow(r, x);
    }
  }

  __device__ static Vec<Element> of_neighbour(const Vec<Element>& x, int lanes) {
    return {make_uint4(__shfl_xor_sync(0xffffffffu, x.bits.x, lanes), __shfl_xor_sync(0xffffffffu, x.bits.y, lanes),
                       __shfl_xor_sync(0xffffffffu, x.bits.z, lanes), __shfl_xor_sync(0xffffffffu, x.bits.w, lanes))};
  }
};

static_assert(kTile == 128 && kThreadTile == 8, "rope_casts_heads_of assumes these sizes");

}  // namespace

void rope(const Rope& args, Stream& stream) {
  const int64_t head_dim = args.table.dim(1);
  const RopeSizes sizes{.tokens = args.qkv.dim(0),
                        .seq_len = args.table.dim(0),
                        .row_elements = args.qkv.dim(1),
                        .rotated_heads = static_cast<int>(args.num_heads + args.num_kv_heads),
                        .head_dim = static_cast<int>(head_dim),
                        .direction = args.inverse ? -1.0f : 1.0f};
  const LaunchShape shape{grid_dim(ceil_div(sizes.tokens, kTokensPerBlock)), dim3(kThreadsPerToken, kTokensPerBlock)};
  const bool casts_at_once = args.cast.defined() && rope_casts_heads_of(head_dim);
  if (casts_at_once && args.cast.is_of(args.amax)) {
    const bool aligned = rows_are_aligned<__nv_bfloat16>(head_dim / 2, {args.qkv.raw()});
    auto* measure = aligned ? rope_kernel<__nv_bfloat16, kVector<__nv_bfloat16>, true, false>
                            : rope_kernel<__nv_bfloat16, 1, true, false>;
    launch("rope", measure, shape, stream, pointer<__nv_bfloat16>(args.qkv), pointer<const float>(args.table),
           pointer<float>(args.amax), sizes);
  }
  if (casts_at_once) {
    const RotatedSource source{pointer<const __nv_bfloat16>(args.qkv), pointer<const float>(args.table), sizes};
    expect_aligned<__nv_bfloat16>("rope", sizes.row_elements, {source.qkv});
    expect_aligned<float>("rope", head_dim, {source.table});
    return make_and_cast<CastOf::kGradient>("rope", source, args.cast, sizes.tokens, sizes.row_elements,
                                            args.cast.is_of(args.amax) ? Tensor() : args.amax, stream);
  }
  with_element(args.qkv.dtype(), [&]<typename T>() {
    // Checking half a head suffices, because a row is a whole number of heads.
    const bool aligned = rows_are_aligned<T>(head_dim / 2, {args.qkv.raw()});
    auto* plain = aligned ? rope_kernel<T, kVector<T>, false> : rope_kernel<T, 1, false>;
    auto* with_amax = aligned ? rope_kernel<T, kVector<T>, true> : rope_kernel<T, 1, true>;
    launch("rope", args.amax.defined() ? with_amax : plain, shape, stream, pointer<T>(args.qkv),
           pointer<const float>(args.table), pointer<float>(args.amax), sizes);
  });
  if (args.cast.defined()) cuda::quantize({.cast = args.cast, .x = args.qkv}, stream);
}

}  // namespace octavo::cuda
