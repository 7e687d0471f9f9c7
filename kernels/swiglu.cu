#include "kernels/core/cuda_amax.cuh"
#include "kernels/fp8_cast.cuh"
#include "kernels/swiglu.h"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRows = 4;  // rows a thread works on at once: as many independent loads in flight, and no division

__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

template <typename T, int N>
__device__ Vec<T, N> forward_vector(const Vec<T, N>& gate, const Vec<T, N>& up) {
  float g[N];
  float u[N];
  gate.widen(g);
  up.widen(u);
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] = g[i] * sigmoid(g[i]) * u[i];
  return Vec<T, N>::narrow(g);
}

// Replaces gate and up by their gradients.
template <typename T, int N>
__device__ void backward_vector(Vec<T, N>& gate, Vec<T, N>& up, const Vec<T, N>& d_out) {
  float g[N];
  float u[N];
  float d[N];
  gate.widen(g);
  up.widen(u);
  d_out.widen(d);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = sigmoid(g[i]);
    const float silu = g[i] * s;
    g[i] = d[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
    u[i] = d[i] * silu;
  }
  gate = Vec<T, N>::narrow(g);
  up = Vec<T, N>::narrow(u);
}

template <typename T, int N>
__device__ Magnitude<T> forward_rows(T* out, const T* gate_up, int64_t tokens, int64_t intermediate) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows;
  Magnitude<T> largest;
  if (column >= intermediate) return largest;
  Vec<T, N> gate[kRows];
  Vec<T, N> up[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= tokens) break;
    const T* p = gate_up + (row + r) * 2 * intermediate + column;
    gate[r] = Vec<T, N>::load(p);
    up[r] = Vec<T, N>::load(p + intermediate);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= tokens) break;
    const auto result = forward_vector(gate[r], up[r]);
    result.store(out + (row + r) * intermediate + column);
    largest.add(result);
  }
  return largest;
}

template <typename T, int N, bool kAmax>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* out, const T* gate_up, float* amax, int64_t tokens, int64_t intermediate) {
  const Magnitude<T> largest = forward_rows<T, N>(out, gate_up, tokens, intermediate);
  if constexpr (kAmax) update_amax(amax, largest.float_bits());
}

// d_gate_up may alias gate_up: a thread reads both of its elements of a row before it writes them.
template <typename T, int N>
__device__ Magnitude<T> backward_rows(T* d_gate_up, const T* d_out, const T* gate_up, int64_t tokens,
                                      int64_t intermediate) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows;
  Magnitude<T> largest;
  if (column >= intermediate) return largest;
  Vec<T, N> gate[kRows];
  Vec<T, N> up[kRows];
  Vec<T, N> d[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= tokens) break;
    const T* p = gate_up + (row + r) * 2 * intermediate + column;
    gate[r] = Vec<T, N>::load(p);
    up[r] = Vec<T, N>::load(p + intermediate);
    d[r] = Vec<T, N>::load(d_out + (row + r) * intermediate + column);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= tokens) break;
    backward_vector(gate[r], up[r], d[r]);
    T* p = d_gate_up + (row + r) * 2 * intermediate + column;
    gate[r].store(p);
    up[r].store(p + intermediate);
    largest.add(gate[r]);
    largest.add(up[r]);
  }
  return largest;
}

template <typename T, int N, bool kAmax>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(T* d_gate_up, const T* d_out, const T* gate_up,
                                                                   float* amax, int64_t tokens, int64_t intermediate) {
  const Magnitude<T> largest = backward_rows<T, N>(d_gate_up, d_out, gate_up, tokens, intermediate);
  if constexpr (kAmax) update_amax(amax, largest.float_bits());
}

// ---- With a cast

template <typename T>
struct ForwardSource {
  using Element = T;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = std::is_same_v<T, float> ? 1 : 3;
  const T* gate_up;  // [m, 2 n]

  template <bool kAligned>
  __device__ void make(Patch<T> (&parts)[kParts], int64_t m, int64_t n, const Place& at) const {
    const Patch<T> gate = load_patch<kAligned>(gate_up, m, n, 2 * n, at);
    const Patch<T> up = load_patch<kAligned>(gate_up + n, m, n, 2 * n, at);
#pragma unroll
    for (int r = 0; r < kPatch; ++r) {
#pragma unroll
      for (int v = 0; v < Patch<T>::kVectors; ++v) {
        parts[0].rows[r][v] = forward_vector(gate.rows[r][v], up.rows[r][v]);
      }
    }
  }
};

// Both halves of d_gate_up, as their inputs are the same.
template <typename T>
struct BackwardSource {
  using Element = T;
  static constexpr int kParts = 2;
  static constexpr int kMinBlocks = std::is_same_v<T, float> ? 1 : 2;
  const T* d_out;    // [m, n]
  const T* gate_up;  // [m, 2 n]

  template <bool kAligned>
  __device__ void make(Patch<T> (&parts)[kParts], int64_t m, int64_t n, const Place& at) const {
    parts[0] = load_patch<kAligned>(gate_up, m, n, 2 * n, at);
    parts[1] = load_patch<kAligned>(gate_up + n, m, n, 2 * n, at);
    const Patch<T> d = load_patch<kAligned>(d_out, m, n, n, at);
#pragma unroll
    for (int r = 0; r < kPatch; ++r) {
#pragma unroll
      for (int v = 0; v < Patch<T>::kVectors; ++v)
        backward_vector(parts[0].rows[r][v], parts[1].rows[r][v], d.rows[r][v]);
    }
  }
};

// ---- Host

LaunchShape row_tiles(int64_t tokens, int64_t columns) {
  return {dim3(grid_dim(ceil_div(tokens, kRows)), grid_dim(ceil_div(columns, kThreads))), kThreads};
}

}  // namespace

void swiglu_forward(const SwigluForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t intermediate = args.out.dim(1);
  with_element(args.out.dtype(), [&]<typename T>() {
    if (args.cast.defined()) {
      const ForwardSource<T> source{pointer<const T>(args.gate_up)};
      const bool source_aligned = rows_are_aligned<T>(intermediate, {source.gate_up});
      return make_and_cast("swiglu_forward", source, source_aligned, args.cast, tokens, intermediate, args.amax,
                           stream);
    }
    const bool aligned = rows_are_aligned<T>(intermediate, {args.out.raw(), args.gate_up.raw()});
    auto* plain = aligned ? swiglu_forward_kernel<T, kVector<T>, false> : swiglu_forward_kernel<T, 1, false>;
    auto* with_amax = aligned ? swiglu_forward_kernel<T, kVector<T>, true> : swiglu_forward_kernel<T, 1, true>;
    auto* kernel = args.amax.defined() ? with_amax : plain;
    launch("swiglu_forward", kernel, row_tiles(tokens, aligned ? intermediate / kVector<T> : intermediate), stream,
           pointer<T>(args.out), pointer<const T>(args.gate_up), pointer<float>(args.amax), tokens, intermediate);
  });
}

void swiglu_backward(const SwigluBackward& args, Stream& stream) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t intermediate = args.d_out.dim(1);
  with_element(args.d_out.dtype(), [&]<typename T>() {
    if (args.cast.defined()) {
      const BackwardSource<T> source{pointer<const T>(args.d_out), pointer<const T>(args.gate_up)};
      const bool source_aligned = rows_are_aligned<T>(intermediate, {source.d_out, source.gate_up});
      return make_and_cast("swiglu_backward", source, source_aligned, args.cast, tokens, intermediate, args.amax,
                           stream);
    }
    const bool aligned =
        rows_are_aligned<T>(intermediate, {args.d_gate_up.raw(), args.d_out.raw(), args.gate_up.raw()});
    auto* plain = aligned ? swiglu_backward_kernel<T, kVector<T>, false> : swiglu_backward_kernel<T, 1, false>;
    auto* with_amax = aligned ? swiglu_backward_kernel<T, kVector<T>, true> : swiglu_backward_kernel<T, 1, true>;
    auto* kernel = args.amax.defined() ? with_amax : plain;
    launch("swiglu_backward", kernel, row_tiles(tokens, aligned ? intermediate / kVector<T> : intermediate), stream,
           pointer<T>(args.d_gate_up), pointer<const T>(args.d_out), pointer<const T>(args.gate_up),
           pointer<float>(args.amax), tokens, intermediate);
  });
}

}  // namespace octavo::cuda
