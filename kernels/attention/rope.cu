#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/rotated.cuh"
#include "kernels/cuda/amax.cuh"

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

// Each thread loads N angles of its token and rotates the pairs that they belong to in every `slots`-th head. With
// kAmax it also reads the value heads.
template <typename T, int N, bool kAmax>
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
        T* p = row + static_cast<int64_t>(head) * sizes.head_dim + i;
        const auto rotated_low = Vec<T, N>::narrow(a);
        const auto rotated_high = Vec<T, N>::narrow(b);
        rotated_low.store(p);
        rotated_high.store(p + half);
        largest.add(rotated_low);
        largest.add(rotated_high);
      }
    }
  }
  return largest;
}

template <typename T, int N, bool kAmax>
__global__ void __launch_bounds__(kThreadsPerToken* kTokensPerBlock, 3)
    rope_kernel(T* qkv, const float* table, float* amax, const RopeSizes sizes) {
  const Magnitude<T> largest = rotate<T, N, kAmax>(qkv, table, sizes);
  if constexpr (kAmax) update_amax(amax, largest.float_bits());
}

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
  with_element(args.qkv.dtype(), [&]<typename T>() {
    // Half a head must be aligned, because a row is a whole number of heads.
    const bool aligned = rows_are_aligned<T>(head_dim / 2, {args.qkv.raw()});
    auto* plain = aligned ? rope_kernel<T, kVector<T>, false> : rope_kernel<T, 1, false>;
    auto* with_amax = aligned ? rope_kernel<T, kVector<T>, true> : rope_kernel<T, 1, true>;
    launch("rope", args.amax.defined() ? with_amax : plain, shape, stream, pointer<T>(args.qkv),
           pointer<const float>(args.table), pointer<float>(args.amax), sizes);
  });
}

}  // namespace octavo::cuda
