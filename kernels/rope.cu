#include <algorithm>

#include "kernels/core/cuda_launch.cuh"
#include "kernels/rope.h"

namespace octavo::cuda {

namespace {

constexpr int kThreadsPerToken = 64;
constexpr int kTokensPerBlock = 4;
constexpr int kHeadsAtOnce = 3;  // loads in flight

struct RopeSizes {
  int64_t tokens;
  int64_t seq_len;
  int64_t row_elements;  // elements of a packed row
  int rotated_heads;     // query and key heads, which lie one after the other
  int head_dim;
  float direction;  // -1 turns back
};

// A thread keeps N angles of its token and rotates the pairs they belong to in every `slots`-th head.
template <typename T, int N>
__global__ void __launch_bounds__(kThreadsPerToken* kTokensPerBlock, 3)
    rope_kernel(T* qkv, const float* table, const RopeSizes sizes) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.y;
  if (token >= sizes.tokens) return;
  const int half = sizes.head_dim / 2;
  const int lanes = half / N;
  const int lanes_at_once = min(lanes, kThreadsPerToken);
  const int slots = kThreadsPerToken / lanes_at_once;
  const int slot = static_cast<int>(threadIdx.x) / lanes_at_once;
  if (slot >= slots) return;
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
    for (int first = slot; first < sizes.rotated_heads; first += slots * kHeadsAtOnce) {
      Vec<T, N> low[kHeadsAtOnce];
      Vec<T, N> high[kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * slots;
        if (head >= sizes.rotated_heads) break;
        const T* p = row + static_cast<int64_t>(head) * sizes.head_dim + i;
        low[u] = Vec<T, N>::load(p);
        high[u] = Vec<T, N>::load(p + half);
      }
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * slots;
        if (head >= sizes.rotated_heads) break;
        float a[N];
        float b[N];
        low[u].widen(a);
        high[u].widen(b);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float x = a[j];
          a[j] = x * cosine[j] - b[j] * sine[j];
          b[j] = b[j] * cosine[j] + x * sine[j];
        }
        T* p = row + static_cast<int64_t>(head) * sizes.head_dim + i;
        Vec<T, N>::narrow(a).store(p);
        Vec<T, N>::narrow(b).store(p + half);
      }
    }
  }
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
    // Half a head is what must be aligned; a row is a whole number of heads.
    const bool aligned = rows_are_aligned<T>(head_dim / 2, {args.qkv.raw()});
    auto* kernel = aligned ? rope_kernel<T, kVector<T>> : rope_kernel<T, 1>;
    launch("rope", kernel, shape, stream, pointer<T>(args.qkv), pointer<const float>(args.table), sizes);
  });
}

}  // namespace octavo::cuda
