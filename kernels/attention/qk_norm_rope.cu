#include <algorithm>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/rotated.cuh"
#include "kernels/cuda/amax.cuh"
#include "kernels/fp8/fp8_cuda.h"
#include "kernels/math/add_partials.cuh"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kThreadsPerToken = 64;
constexpr int kTokensPerBlock = kThreads / kThreadsPerToken;
constexpr int kWarp = 32;
constexpr int kKinds = 2;  // Kinds of normalized heads: query heads and key heads.

template <typename T>
struct Arguments {
  // Output rows: out in forward, d_qkv (in place) in backward.
  T* rows;
  const T* qkv;
  const float* table;
  const T* weights[kKinds];
  // Backward only: [kKinds, blocks, head_dim], the blocks' sums for the gradients of the weights.
  float* partial;
  float* amax;  // Optional amax, used only by kernels with kAmax.
  int64_t tokens;
  int64_t seq_len;
  int64_t row_elements;
  int heads[kKinds];
  int head_dim;
  float eps;

  __host__ __device__ int rotated_heads() const { return heads[0] + heads[1]; }
  __device__ const float* angles_of(int64_t token) const { return table + token % seq_len * head_dim; }
};

__device__ float rstd_of(float squares, int head_dim, float eps) {
  return rsqrtf(squares / static_cast<float>(head_dim) + eps);
}

// A thread's part of the work of its token's kThreadsPerToken threads. A group of `lanes` neighbouring threads
// processes one head at a time: group `slot` takes heads slot, slot + slots, and so on. An active thread has the vector
// of the head's lower half that starts at element i, and the paired vector of the upper half. `lanes` is a power of
// two. If half a head has fewer vectors, the last threads of a group are inactive, add zeros to the sums, and have i =
// 0.
// Requires: all threads of a warp call sum().
struct Lanes {
  int half, lanes, slots, slot, i;
  bool active;

  template <int N>
  __device__ static Lanes of(int head_dim) {
    const int half = head_dim / 2;
    const int vectors = half / N;
    const int lanes = 1 << (32 - __clz(vectors - 1));
    const int thread = static_cast<int>(threadIdx.x);
    const bool active = thread % lanes < vectors;
    return {half, lanes, kThreadsPerToken / lanes, thread / lanes, active ? thread % lanes * N : 0, active};
  }
  __device__ bool has(int head, int heads) const { return active && head < heads; }

  __device__ float sum(float x) const {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
};

// The elements of a head that one thread rotates: some of the first half and their partners in the second half.
template <typename T>
struct Pairs {
  Vec<T> low, high;

  __device__ static Pairs load(const T* p, int half) { return {Vec<T>::load(p), Vec<T>::load(p + half)}; }
  __device__ static Pairs zero() { return {{make_uint4(0, 0, 0, 0)}, {make_uint4(0, 0, 0, 0)}}; }
  __device__ void store(T* p, int half) const {
    low.store(p);
    high.store(p + half);
  }
  __device__ void widen(float (&a)[kVector<T>], float (&b)[kVector<T>]) const {
    low.widen(a);
    high.widen(b);
  }
  __device__ static Pairs narrow(const float (&a)[kVector<T>], const float (&b)[kVector<T>]) {
    return {Vec<T>::narrow(a), Vec<T>::narrow(b)};
  }
};

template <int N>
__device__ void load_angles(const float* angles, int half, float (&cosine)[N], float (&sine)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += kVector<float>) {
    const float4 c = *reinterpret_cast<const float4*>(angles + j);
    const float4 s = *reinterpret_cast<const float4*>(angles + half + j);
    cosine[j] = c.x, cosine[j + 1] = c.y, cosine[j + 2] = c.z, cosine[j + 3] = c.w;
    sine[j] = s.x, sine[j + 1] = s.y, sine[j + 2] = s.z, sine[j + 3] = s.w;
  }
}

template <typename T>
__device__ Pairs<T> normed_and_rotated(const Pairs<T>& x, const Pairs<T>& weight, const Lanes& lanes,
                                       const float (&cosine)[kVector<T>], const float (&sine)[kVector<T>],
                                       const Arguments<T>& args) {
  constexpr int N = kVector<T>;
  float a[N], b[N], w_low[N], w_high[N];
  x.widen(a, b);
  weight.widen(w_low, w_high);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) squares += a[j] * a[j] + b[j] * b[j];
  const float rstd = rstd_of(lanes.sum(squares), args.head_dim, args.eps);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float low = a[j] * rstd * w_low[j];
    const float high = b[j] * rstd * w_high[j];
    a[j] = rotated(low, -high, cosine[j], sine[j]);
    b[j] = rotated(high, low, cosine[j], sine[j]);
  }
  return Pairs<T>::narrow(a, b);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 3) forward_kernel(const Arguments<T> args) {
  constexpr int N = kVector<T>;
  constexpr int kHeadsAtOnce = 2;  // Number of heads whose loads are in flight at once.
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.y;
  if (token >= args.tokens) return;  // The condition is equal for all threads of a warp.
  const Lanes lanes = Lanes::of<N>(args.head_dim);
  const T* row = args.qkv + token * args.row_elements;
  T* out = args.rows + token * args.row_elements;
  float cosine[N];
  float sine[N];
  load_angles(args.angles_of(token) + lanes.i, lanes.half, cosine, sine);

  // Index in the row of this thread's first element of head 0 of this kind (query or key).
  int64_t begin = lanes.i;
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
    const int heads = args.heads[kind];
    const Pairs<T> weight = Pairs<T>::load(args.weights[kind] + lanes.i, lanes.half);
    for (int first = 0; first < heads; first += lanes.slots * kHeadsAtOnce) {
      Pairs<T> x[kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * lanes.slots + lanes.slot;
        x[u] = lanes.has(head, heads)
                   ? Pairs<T>::load(row + begin + static_cast<int64_t>(head) * args.head_dim, lanes.half)
                   : Pairs<T>::zero();
      }
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = first + u * lanes.slots + lanes.slot;
        const Pairs<T> result = normed_and_rotated(x[u], weight, lanes, cosine, sine, args);
        if (lanes.has(head, heads)) result.store(out + begin + static_cast<int64_t>(head) * args.head_dim, lanes.half);
      }
    }
    begin += static_cast<int64_t>(heads) * args.head_dim;
  }
  if (args.rows == args.qkv) return;
  for (int64_t i = static_cast<int64_t>(args.rotated_heads()) * args.head_dim + static_cast<int64_t>(threadIdx.x) * N;
       i < args.row_elements; i += kThreadsPerToken * N) {
    Vec<T>::load(row + i).store(out + i);
  }
}

// Computes the gradient of one head. On entry d is the gradient of the head's output, on return it is the gradient of
// x. Adds the thread's terms of the weight's gradient to d_low and d_high.
template <typename T>
__device__ Pairs<T> head_gradient(const Pairs<T>& d, const Pairs<T>& x, const Pairs<T>& weight, const Lanes& lanes,
                                  const float (&cosine)[kVector<T>], const float (&sine)[kVector<T>],
                                  const Arguments<T>& args, float (&d_low)[kVector<T>], float (&d_high)[kVector<T>]) {
  constexpr int N = kVector<T>;
  float a[N], b[N], x_low[N], x_high[N], w_low[N], w_high[N];
  d.widen(a, b);
  x.widen(x_low, x_high);
  weight.widen(w_low, w_high);
  float squares = 0;
  float dot = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float turned = a[j];
    a[j] = rotated(turned, b[j], cosine[j], sine[j]);
    b[j] = rotated(b[j], -turned, cosine[j], sine[j]);
    squares += x_low[j] * x_low[j] + x_high[j] * x_high[j];
    dot += a[j] * w_low[j] * x_low[j] + b[j] * w_high[j] * x_high[j];
  }
  const float rstd = rstd_of(lanes.sum(squares), args.head_dim, args.eps);
  const float projection = rstd * rstd * lanes.sum(dot) / static_cast<float>(args.head_dim);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    d_low[j] += a[j] * x_low[j] * rstd;
    d_high[j] += b[j] * x_high[j] * rstd;
    a[j] = rstd * (a[j] * w_low[j] - x_low[j] * projection);
    b[j] = rstd * (b[j] * w_high[j] - x_high[j] * projection);
  }
  return Pairs<T>::narrow(a, b);
}

// Writes, for each column of a head, the sum over the block's groups of lanes, added in the order of the groups.
template <int N>
__device__ void store_sums(float* out, const float (&low)[N], const float (&high)[N], const Lanes& lanes,
                           int head_dim) {
  __shared__ alignas(16) float sums[kThreads * 2 * N];  // [groups, head_dim]
  const int group = static_cast<int>(threadIdx.y) * lanes.slots + lanes.slot;
  float* own = sums + group * head_dim + lanes.i;
  // Waits until all threads have read the sums of the previous kind.
  __syncthreads();
#pragma unroll
  for (int j = 0; j < N && lanes.active; ++j) {
    own[j] = low[j];
    own[lanes.half + j] = high[j];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y) * kThreadsPerToken + static_cast<int>(threadIdx.x);
  for (int column = thread; column < head_dim; column += kThreads) {
    float sum = 0;
    for (int g = 0; g < kTokensPerBlock * lanes.slots; ++g) sum += sums[g * head_dim + column];
    out[column] = sum;
  }
}

template <typename T, bool kAmax>
__global__ void __launch_bounds__(kThreads, kQkNormRopeBlocksPerMultiprocessor)
    backward_kernel(const Arguments<T> args) {
  constexpr int N = kVector<T>;
  const Lanes lanes = Lanes::of<N>(args.head_dim);
  float d_low[kKinds][N] = {};
  float d_high[kKinds][N] = {};
  Magnitude<T> largest;
  for (int64_t token = static_cast<int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.y; token < args.tokens;
       token += static_cast<int64_t>(gridDim.x) * kTokensPerBlock) {
    const T* row = args.qkv + token * args.row_elements;
    T* d_row = args.rows + token * args.row_elements;
    float cosine[N];
    float sine[N];
    load_angles(args.angles_of(token) + lanes.i, lanes.half, cosine, sine);
    // Index in the row of this thread's first element of head 0 of this kind (query or key).
    int64_t begin = lanes.i;
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) {
      const int heads = args.heads[kind];
      const Pairs<T> weight = Pairs<T>::load(args.weights[kind] + lanes.i, lanes.half);
      for (int first = 0; first < heads; first += lanes.slots) {
        const int head = first + lanes.slot;
        const bool inside = lanes.has(head, heads);
        const int64_t at = begin + static_cast<int64_t>(head) * args.head_dim;
        const Pairs<T> d = inside ? Pairs<T>::load(d_row + at, lanes.half) : Pairs<T>::zero();
        const Pairs<T> x = inside ? Pairs<T>::load(row + at, lanes.half) : Pairs<T>::zero();
        const Pairs<T> d_x = head_gradient(d, x, weight, lanes, cosine, sine, args, d_low[kind], d_high[kind]);
        if (!inside) continue;
        d_x.store(d_row + at, lanes.half);
        largest.add(d_x.low);
        largest.add(d_x.high);
      }
      begin += static_cast<int64_t>(heads) * args.head_dim;
    }
    if constexpr (kAmax) {
      for (int64_t i =
               static_cast<int64_t>(args.rotated_heads()) * args.head_dim + static_cast<int64_t>(threadIdx.x) * N;
           i < args.row_elements; i += kThreadsPerToken * N) {
        largest.add(Vec<T>::load(d_row + i));
      }
    }
  }
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
    float* out = args.partial + (static_cast<int64_t>(kind) * gridDim.x + blockIdx.x) * args.head_dim;
    store_sums(out, d_low[kind], d_high[kind], lanes, args.head_dim);
  }
  if constexpr (kAmax) update_amax(args.amax, largest.float_bits());
}

// ---- Host

template <typename T, typename Args>
Arguments<T> arguments_of(const Args& args, const Tensor& rows) {
  return {.rows = pointer<T>(rows),
          .qkv = pointer<const T>(args.qkv),
          .table = pointer<const float>(args.table),
          .weights = {pointer<const T>(args.q_weight), pointer<const T>(args.k_weight)},
          .partial = nullptr,
          .amax = nullptr,
          .tokens = args.qkv.dim(0),
          .seq_len = args.table.dim(0),
          .row_elements = args.qkv.dim(1),
          .heads = {static_cast<int>(args.num_heads), static_cast<int>(args.num_kv_heads)},
          .head_dim = static_cast<int>(args.table.dim(1)),
          .eps = args.eps};
}

// Checks that each half of a head starts at a multiple of 16 bytes and consists of vectors, at most one per lane of a
// warp. The heads of models do (kernels/attention/sdpa.h).
template <typename T>
void check_heads(const Arguments<T>& args) {
  const int vectors = args.head_dim / 2 / kVector<T>;
  const bool aligned =
      rows_are_aligned<T>(args.head_dim / 2, {args.rows, args.qkv, args.weights[0], args.weights[1]}) &&
      rows_are_aligned<float>(args.head_dim / 2, {args.table});
  if (aligned && vectors >= 1 && vectors <= kWarp) return;
  check(cudaErrorMisalignedAddress, "qk-norm of heads whose halves are not 1 to 32 vectors of 16 bytes");
}

constexpr dim3 kLanesBlock(kThreadsPerToken, kTokensPerBlock);

int64_t most_backward_blocks(const Stream& stream) {
  return int64_t{kQkNormRopeBlocksPerMultiprocessor} * stream.multiprocessors();
}

// Returns the number of blocks. Each block writes two rows of sums, one for query heads and one for key heads.
template <typename T, bool kAmax>
int launch_backward(const Arguments<T>& arguments, Stream& stream) {
  check_heads(arguments);
  const int64_t work = ceil_div(arguments.tokens, kTokensPerBlock);
  const auto blocks = static_cast<int>(std::min(work, most_backward_blocks(stream)));
  launch("qk_norm_rope_backward", backward_kernel<T, kAmax>, {grid_dim(blocks), kLanesBlock}, stream, arguments);
  return blocks;
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeForward& args, Stream& stream) {
  with_element(args.qkv.dtype(), [&]<typename T>() {
    const Arguments<T> arguments = arguments_of<T>(args, args.out);
    check_heads(arguments);
    launch("qk_norm_rope_forward", forward_kernel<T>,
           {grid_dim(ceil_div(arguments.tokens, kTokensPerBlock)), kLanesBlock}, stream, arguments);
  });
}

void qk_norm_rope_backward(const QkNormRopeBackward& args, Stream& stream) {
  const int64_t head_dim = args.table.dim(1);
  auto* partial = static_cast<float*>(stream.workspace(qk_norm_rope_backward_workspace_bytes(head_dim, stream)));
  int blocks = 0;
  with_element(args.qkv.dtype(), [&]<typename T>() {
    Arguments<T> arguments = arguments_of<T>(args, args.d_qkv);
    arguments.partial = partial;
    arguments.amax = pointer<float>(args.amax);
    blocks = args.amax.defined() ? launch_backward<T, true>(arguments, stream)
                                 : launch_backward<T, false>(arguments, stream);
  });
  add_partials("qk_norm_rope_backward", args.d_q_weight, partial, blocks, stream);
  add_partials("qk_norm_rope_backward", args.d_k_weight, partial + blocks * head_dim, blocks, stream);
  if (args.cast.defined()) cuda::quantize({.cast = args.cast, .x = args.d_qkv}, stream);
}

}  // namespace octavo::cuda
