#include "kernels/cuda/amax.cuh"
#include "kernels/fp8/fp8_cast.cuh"
#include "kernels/layers/swiglu.h"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRows = 4;  // rows per thread, whose independent loads are in flight at once

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

// Replaces gate and up by their gradients and d_out by the result of forward.
template <typename T, int N>
__device__ void backward_vector(Vec<T, N>& gate, Vec<T, N>& up, Vec<T, N>& d_out) {
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
    const float out = silu * u[i];
    g[i] = d[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
    u[i] = d[i] * silu;
    d[i] = out;
  }
  gate = Vec<T, N>::narrow(g);
  up = Vec<T, N>::narrow(u);
  d_out = Vec<T, N>::narrow(d);
}

template <typename T>
struct ForwardMagnitudes {
  Magnitude<T> out, gate, up;
};

template <typename T, int N>
__device__ ForwardMagnitudes<T> forward_rows(T* out, const T* gate_up, int64_t tokens, int64_t intermediate) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows;
  ForwardMagnitudes<T> largest;
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
    largest.out.add(result);
    largest.gate.add(gate[r]);
    largest.up.add(up[r]);
  }
  return largest;
}

template <typename T, int N, bool kAmax, bool kGradientBound>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* out, const T* gate_up, float* amax, float* gradient_bound_factor, int64_t tokens,
                          int64_t intermediate) {
  const ForwardMagnitudes<T> largest = forward_rows<T, N>(out, gate_up, tokens, intermediate);
  if constexpr (kAmax) update_amax(amax, largest.out.float_bits());
  if constexpr (kGradientBound) {
    __syncthreads();
    const float of_gates = __fmul_rn(kLargestSiluSlope, __uint_as_float(largest.up.float_bits()));
    update_amax(gradient_bound_factor, max(largest.gate.float_bits(), __float_as_uint(of_gates)));
  }
}

// Computes the gradient of kRows rows and returns its amax over this thread's elements. d_gate_up may alias gate_up and
// `out` may alias d_out, because a thread reads its elements before it writes them. `out` may be null.
template <typename T, int N>
__device__ Magnitude<T> backward_rows(T* d_gate_up, T* out, const T* d_out, const T* gate_up, int64_t tokens,
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
    if (out != nullptr) d[r].store(out + (row + r) * intermediate + column);
    largest.add(gate[r]);
    largest.add(up[r]);
  }
  return largest;
}

template <typename T, int N, bool kAmax>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(T* d_gate_up, T* out, const T* d_out, const T* gate_up, float* amax, int64_t tokens,
                           int64_t intermediate) {
  const Magnitude<T> largest = backward_rows<T, N>(d_gate_up, out, d_out, gate_up, tokens, intermediate);
  if constexpr (kAmax) update_amax(amax, largest.float_bits());
}

// ---- SwiGLU that also casts its result to FP8

struct ForwardSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = 3;
  const Element* gate_up;  // [m, 2 n]

  __device__ void make(ThreadTile<Element> (&parts)[kParts], int64_t m, int64_t n, const ThreadPosition& at) const {
    const ThreadTile<Element> gate = load_thread_tile(gate_up, m, n, 2 * n, at);
    const ThreadTile<Element> up = load_thread_tile(gate_up + n, m, n, 2 * n, at);
#pragma unroll
    for (int r = 0; r < kThreadTile; ++r) {
#pragma unroll
      for (int v = 0; v < ThreadTile<Element>::kVectors; ++v) {
        parts[0].rows[r][v] = forward_vector(gate.rows[r][v], up.rows[r][v]);
      }
    }
  }
};

// Computes both halves of d_gate_up, whose inputs are the same, and casts the result of forward to `out`. Used for
// scales of blocks, which need whole thread tiles.
struct BackwardSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 2;
  static constexpr int kMinBlocks = 2;
  const Element* d_out;    // [m, n]
  const Element* gate_up;  // [m, 2 n]
  CastArguments out;       // `columns` is null if `out` is not cast

  __device__ void make(ThreadTile<Element> (&parts)[kParts], int64_t m, int64_t n, const ThreadPosition& at) const {
    parts[0] = load_thread_tile(gate_up, m, n, 2 * n, at);
    parts[1] = load_thread_tile(gate_up + n, m, n, 2 * n, at);
    ThreadTile<Element> d = load_thread_tile(d_out, m, n, n, at);
#pragma unroll
    for (int r = 0; r < kThreadTile; ++r) {
#pragma unroll
      for (int v = 0; v < ThreadTile<Element>::kVectors; ++v)
        backward_vector(parts[0].rows[r][v], parts[1].rows[r][v], d.rows[r][v]);
    }
    if (out.columns == nullptr) return;
    cast_tile<Scaling::kBlock1x128, __NV_E4M3>(out, d, PartPosition{at, n, n}, false, true);
    __syncthreads();  // waits until all threads have read the tile in shared memory
  }
};

// The kernel for scales of whole tensors. A scale is known before the tile is computed, so a few rows of a thread tile
// are cast at a time. Whole thread tiles of all three inputs would leave no registers for a third block on a
// multiprocessor.

struct BackwardTile {
  const __nv_bfloat16* d_out;    // [m, n]
  const __nv_bfloat16* gate_up;  // [m, 2 n]
  __nv_bfloat16* d_gate_up;      // with kMemory
  float* amax;                   // amax of the gradient; may be null
  CastArguments gradient;        // cast to parts [m, n]; with kMemory only m and n are set
  CastArguments out;             // columns only
};

template <GradientTo kTo, bool kOut>
__global__ void __launch_bounds__(kTileThreads, 3) swiglu_backward_tile_kernel(const BackwardTile a) {
  using T = __nv_bfloat16;
  constexpr int kRowsAtOnce = kTo == GradientTo::kMemory ? 4 : 2;
  constexpr int kVectors = ThreadTile<T>::kVectors;
  constexpr Format kFormat = format_of(kTo);
  const int64_t m = a.gradient.m;
  const int64_t n = a.gradient.n;
  const ThreadPosition at = position_of_thread(n);
  float scale = 0;
  float out_scale = 0;
  if constexpr (kTo != GradientTo::kMemory) scale = find_tensor_scale<kFormat>(a.gradient);
  if constexpr (kOut) out_scale = find_tensor_scale<__NV_E4M3>(a.out);
  ThreadTileBytes gate_bytes;
  ThreadTileBytes up_bytes;
  ThreadTileBytes out_bytes;
  Magnitude<T> largest;
#pragma unroll
  for (int begin = 0; begin < kThreadTile; begin += kRowsAtOnce) {
    Vec<T> gate[kRowsAtOnce][kVectors];
    Vec<T> up[kRowsAtOnce][kVectors];
    Vec<T> d[kRowsAtOnce][kVectors];
    const int64_t row = at.row + at.thread_row * kThreadTile + begin;
    const int64_t column = at.column + at.thread_column * kThreadTile;
    const auto count = [&](int r, int v) { return row + r < m ? n - column - v * kVector<T> : 0; };
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t i = (row + r) * n + column + v * kVector<T>;
        const T* p = a.gate_up + i + (row + r) * n;
        gate[r][v] = load_some(p, count(r, v));
        up[r][v] = load_some(p + n, count(r, v));
        d[r][v] = load_some(a.d_out + i, count(r, v));
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        backward_vector(gate[r][v], up[r][v], d[r][v]);
        largest.add(gate[r][v]);
        largest.add(up[r][v]);
        if constexpr (kTo == GradientTo::kMemory) {
          T* p = a.d_gate_up + (row + r) * 2 * n + column + v * kVector<T>;
          if (count(r, v) <= 0) continue;
          gate[r][v].store(p);
          up[r][v].store(p + n);
        }
      }
      if constexpr (kTo != GradientTo::kMemory) {
        gate_bytes.rows[begin + r] = cast_row<kFormat>(gate[r], scale);
        up_bytes.rows[begin + r] = cast_row<kFormat>(up[r], scale);
      }
      if constexpr (kOut) out_bytes.rows[begin + r] = cast_row<__NV_E4M3>(d[r], out_scale);
    }
  }
  if (a.amax != nullptr) update_amax(a.amax, largest.float_bits());
  __shared__ TransposedTile tile;
  if constexpr (kTo != GradientTo::kMemory) {
    ThreadPosition at_up = at;
    at_up.column += n;
    if (a.gradient.rows != nullptr) {
      store_rows(a.gradient.rows, gate_bytes, at, m, n, 2 * n);
      store_rows(a.gradient.rows, up_bytes, at_up, m, 2 * n, 2 * n);
    }
    if (a.gradient.columns != nullptr) {
      store_columns(a.gradient.columns, gate_bytes, at, m, n, tile);
      __syncthreads();
      store_columns(a.gradient.columns, up_bytes, at_up, m, 2 * n, tile);
      if (kOut) __syncthreads();
    }
  }
  if constexpr (kOut) store_columns(a.out.columns, out_bytes, at, m, n, tile);
}

// ---- Host

LaunchShape row_tiles(int64_t tokens, int64_t columns) {
  return {dim3(grid_dim(ceil_div(tokens, kRows)), grid_dim(ceil_div(columns, kThreads))), kThreads};
}

template <typename T, int N>
void launch_forward_rows(const SwigluForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t intermediate = args.out.dim(1);
  auto* kernel = args.gradient_bound_factor.defined() ? swiglu_forward_kernel<T, N, true, true>
                 : args.amax.defined()                ? swiglu_forward_kernel<T, N, true, false>
                                                      : swiglu_forward_kernel<T, N, false, false>;
  launch("swiglu_forward", kernel, row_tiles(tokens, intermediate / N), stream, pointer<T>(args.out),
         pointer<const T>(args.gate_up), pointer<float>(args.amax), pointer<float>(args.gradient_bound_factor), tokens,
         intermediate);
}

template <typename T, int N>
void launch_backward_rows(const SwigluBackward& args, Stream& stream) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t intermediate = args.d_out.dim(1);
  auto* kernel = args.amax.defined() ? swiglu_backward_kernel<T, N, true> : swiglu_backward_kernel<T, N, false>;
  launch("swiglu_backward", kernel, row_tiles(tokens, intermediate / N), stream, pointer<T>(args.d_gate_up),
         pointer<T>(args.out), pointer<const T>(args.d_out), pointer<const T>(args.gate_up), pointer<float>(args.amax),
         tokens, intermediate);
}

template <typename T>
void backward_by_rows(const SwigluBackward& args, Stream& stream) {
  const int64_t intermediate = args.d_out.dim(1);
  const bool aligned =
      rows_are_aligned<T>(intermediate, {args.d_out.raw(), args.gate_up.raw(), args.d_gate_up.raw(), args.out.raw()});
  if (aligned) return launch_backward_rows<T, kVector<T>>(args, stream);
  launch_backward_rows<T, 1>(args, stream);
}

template <GradientTo kTo, bool kOut>
void launch_backward_tiles(const BackwardTile& tile, Stream& stream) {
  launch("swiglu_backward", swiglu_backward_tile_kernel<kTo, kOut>, tiles(tile.gradient.m, tile.gradient.n), stream,
         tile);
}

void backward_by_tiles(const SwigluBackward& args, Stream& stream) {
  using T = __nv_bfloat16;
  const int64_t m = args.d_out.dim(0);
  const int64_t n = args.d_out.dim(1);
  const BackwardTile tile{.d_out = pointer<const T>(args.d_out),
                          .gate_up = pointer<const T>(args.gate_up),
                          .d_gate_up = pointer<T>(args.d_gate_up),
                          .amax = pointer<float>(args.amax),
                          .gradient = cast_arguments(args.cast, m, n, {}),
                          .out = cast_arguments(args.out_cast, m, n, {})};
  expect_aligned<T>("swiglu_backward", n, {tile.d_out, tile.gate_up, tile.d_gate_up});
  if (args.cast.defined()) expect_aligned<uint8_t>("swiglu_backward", n, {tile.gradient.rows});
  expect_aligned<uint8_t>("swiglu_backward", m, {tile.gradient.columns, tile.out.columns});
  if (!args.cast.defined()) return launch_backward_tiles<GradientTo::kMemory, true>(tile, stream);
  with_format(args.cast.format(), [&]<Format kFormat>() {
    constexpr GradientTo kTo = kFormat == __NV_E5M2 ? GradientTo::kE5M2 : GradientTo::kE4M3;
    if (args.out_cast.defined()) return launch_backward_tiles<kTo, true>(tile, stream);
    launch_backward_tiles<kTo, false>(tile, stream);
  });
}

void backward_by_blocks(const SwigluBackward& args, Stream& stream) {
  using T = __nv_bfloat16;
  const int64_t m = args.d_out.dim(0);
  const int64_t n = args.d_out.dim(1);
  const BackwardSource source{pointer<const T>(args.d_out), pointer<const T>(args.gate_up),
                              cast_arguments(args.out_cast, m, n, {})};
  expect_aligned<T>("swiglu_backward", n, {source.d_out, source.gate_up});
  if (source.out.columns != nullptr) expect_aligned<uint8_t>("swiglu_backward", m, {source.out.columns});
  with_format(args.cast.format(), [&]<Format kFormat>() {
    launch_cast<Scaling::kBlock1x128, kFormat>("swiglu_backward", source, cast_arguments(args.cast, m, n, args.amax),
                                               stream);
  });
}

}  // namespace

void swiglu_forward(const SwigluForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t intermediate = args.out.dim(1);
  if (args.cast.defined()) {
    const ForwardSource source{pointer<const __nv_bfloat16>(args.gate_up)};
    expect_aligned<__nv_bfloat16>("swiglu_forward", intermediate, {source.gate_up});
    return make_and_cast<CastOf::kActivation>("swiglu_forward", source, args.cast, tokens, intermediate, args.amax,
                                              stream);
  }
  with_element(args.out.dtype(), [&]<typename T>() {
    const bool aligned = rows_are_aligned<T>(intermediate, {args.out.raw(), args.gate_up.raw()});
    if (aligned) return launch_forward_rows<T, kVector<T>>(args, stream);
    launch_forward_rows<T, 1>(args, stream);
  });
}

// Queues the kernels of backward, which depend on the casts. The casts of the gradient and of `out` have one scaling.
//
//   gradient   out      scale of the cast   queued
//   stored     stored   none                backward_by_rows
//   any        any      tensor              backward_by_tiles
//   cast       any      blocks              backward_by_blocks
//   stored     cast     blocks              backward_by_rows, then quantize of `out`
void swiglu_backward(const SwigluBackward& args, Stream& stream) {
  using T = __nv_bfloat16;
  if (!args.cast.defined() && !args.out_cast.defined()) {
    return with_element(args.d_out.dtype(), [&]<typename Element>() { backward_by_rows<Element>(args, stream); });
  }
  const Fp8Cast& either = args.cast.defined() ? args.cast : args.out_cast;
  if (traits(either.scaling()).takes_amax) return backward_by_tiles(args, stream);
  if (args.cast.defined()) return backward_by_blocks(args, stream);
  backward_by_rows<T>(args, stream);
  quantize({.cast = args.out_cast, .x = args.out}, stream);
}

}  // namespace octavo::cuda
