#include "core/cuda_amax.cuh"
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

// Replaces gate and up by their gradients, and d_out by the result of forward.
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

// d_gate_up may alias gate_up, and out d_out: a thread reads its elements before it writes them. `out` may be null.
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

// ---- With a cast

struct ForwardSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = 3;
  const Element* gate_up;  // [m, 2 n]

  template <bool kAligned>
  __device__ void make(Patch<Element> (&parts)[kParts], int64_t m, int64_t n, const Place& at) const {
    const Patch<Element> gate = load_patch<kAligned>(gate_up, m, n, 2 * n, at);
    const Patch<Element> up = load_patch<kAligned>(gate_up + n, m, n, 2 * n, at);
#pragma unroll
    for (int r = 0; r < kPatch; ++r) {
#pragma unroll
      for (int v = 0; v < Patch<Element>::kVectors; ++v) {
        parts[0].rows[r][v] = forward_vector(gate.rows[r][v], up.rows[r][v]);
      }
    }
  }
};

// Both halves of d_gate_up, as their inputs are the same; the result of forward leaves through `out` on the way.
template <Scaling kOutScaling>
struct BackwardSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 2;
  static constexpr int kMinBlocks = 2;
  const Element* d_out;    // [m, n]
  const Element* gate_up;  // [m, 2 n]
  CastArguments out;       // columns null: not wanted

  template <bool kAligned>
  __device__ void make(Patch<Element> (&parts)[kParts], int64_t m, int64_t n, const Place& at) const {
    parts[0] = load_patch<kAligned>(gate_up, m, n, 2 * n, at);
    parts[1] = load_patch<kAligned>(gate_up + n, m, n, 2 * n, at);
    Patch<Element> d = load_patch<kAligned>(d_out, m, n, n, at);
#pragma unroll
    for (int r = 0; r < kPatch; ++r) {
#pragma unroll
      for (int v = 0; v < Patch<Element>::kVectors; ++v)
        backward_vector(parts[0].rows[r][v], parts[1].rows[r][v], d.rows[r][v]);
    }
    if (out.columns == nullptr) return;
    cast_tile<kAligned, kOutScaling, __NV_E4M3>(out, d, PartPlace{at, n, n}, false, true);
    __syncthreads();  // until all have read what that left in shared memory
  }
};

// The gradient as it is, beside a cast of the result of forward with the scale of out.amax. Half a patch at a time:
// whole ones of all three inputs leave no registers for a third block on a multiprocessor.
template <bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 3)
    swiglu_backward_tile_kernel(__nv_bfloat16* d_gate_up, const __nv_bfloat16* d_out, const __nv_bfloat16* gate_up,
                                float* amax, const CastArguments out) {
  using T = __nv_bfloat16;
  constexpr int kHalf = kPatch / 2;
  constexpr int kVectors = Patch<T>::kVectors;
  const Place at = place_of_thread(out.n);
  const float scale = scale_of<__NV_E4M3>(*out.amax);
  if (blockIdx.x == 0 && threadIdx.x == 0) *out.columns_scale_inv = inverse_of(scale);
  BytePatch bytes;
  Magnitude<T> largest;
#pragma unroll
  for (int half = 0; half < kPatch; half += kHalf) {
    Vec<T> gate[kHalf][kVectors];
    Vec<T> up[kHalf][kVectors];
    Vec<T> d[kHalf][kVectors];
    const int64_t row = at.row + at.patch_row * kPatch + half;
    const int64_t column = at.column + at.patch_column * kPatch;
    const auto count = [&](int r, int v) { return row + r < out.m ? out.n - column - v * kVector<T> : 0; };
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t i = (row + r) * out.n + column + v * kVector<T>;
        const T* p = gate_up + i + (row + r) * out.n;
        gate[r][v] = load_some<kAligned>(p, count(r, v));
        up[r][v] = load_some<kAligned>(p + out.n, count(r, v));
        d[r][v] = load_some<kAligned>(d_out + i, count(r, v));
      }
    }
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      float result[kPatch];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        backward_vector(gate[r][v], up[r][v], d[r][v]);
        T* p = d_gate_up + (row + r) * 2 * out.n + column + v * kVector<T>;
        store_some<kAligned>(p, gate[r][v], count(r, v));
        store_some<kAligned>(p + out.n, up[r][v], count(r, v));
        largest.add(gate[r][v]);
        largest.add(up[r][v]);
        float part[kVector<T>];
        d[r][v].widen(part);
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) result[v * kVector<T> + i] = part[i];
      }
      bytes.rows[half + r] = cast_row<__NV_E4M3>(result, [&](int) { return scale; });
    }
  }
  if (amax != nullptr) update_amax(amax, largest.float_bits());
  __shared__ TransposedTile tile;
  store_columns<kAligned>(out.columns, bytes, at, out.m, out.n, tile);
}

// ---- Host

LaunchShape row_tiles(int64_t tokens, int64_t columns) {
  return {dim3(grid_dim(ceil_div(tokens, kRows)), grid_dim(ceil_div(columns, kThreads))), kThreads};
}

}  // namespace

void swiglu_forward(const SwigluForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t intermediate = args.out.dim(1);
  if (args.cast.defined()) {
    const ForwardSource source{pointer<const __nv_bfloat16>(args.gate_up)};
    const bool source_aligned = rows_are_aligned<__nv_bfloat16>(intermediate, {source.gate_up});
    return make_and_cast<CastOf::kActivation>("swiglu_forward", source, source_aligned, args.cast, tokens, intermediate,
                                              args.amax, stream);
  }
  with_element(args.out.dtype(), [&]<typename T>() {
    const bool aligned = rows_are_aligned<T>(intermediate, {args.out.raw(), args.gate_up.raw()});
    auto* plain = aligned ? swiglu_forward_kernel<T, kVector<T>, false> : swiglu_forward_kernel<T, 1, false>;
    auto* with_amax = aligned ? swiglu_forward_kernel<T, kVector<T>, true> : swiglu_forward_kernel<T, 1, true>;
    auto* kernel = args.amax.defined() ? with_amax : plain;
    launch("swiglu_forward", kernel, row_tiles(tokens, aligned ? intermediate / kVector<T> : intermediate), stream,
           pointer<T>(args.out), pointer<const T>(args.gate_up), pointer<float>(args.amax), tokens, intermediate);
  });
}

namespace {

template <typename T>
void backward_by_rows(const SwigluBackward& args, Stream& stream) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t intermediate = args.d_out.dim(1);
  const bool aligned =
      rows_are_aligned<T>(intermediate, {args.d_gate_up.raw(), args.out.raw(), args.d_out.raw(), args.gate_up.raw()});
  auto* plain = aligned ? swiglu_backward_kernel<T, kVector<T>, false> : swiglu_backward_kernel<T, 1, false>;
  auto* with_amax = aligned ? swiglu_backward_kernel<T, kVector<T>, true> : swiglu_backward_kernel<T, 1, true>;
  auto* kernel = args.amax.defined() ? with_amax : plain;
  launch("swiglu_backward", kernel, row_tiles(tokens, aligned ? intermediate / kVector<T> : intermediate), stream,
         pointer<T>(args.d_gate_up), pointer<T>(args.out), pointer<const T>(args.d_out), pointer<const T>(args.gate_up),
         pointer<float>(args.amax), tokens, intermediate);
}

// The gradient is not cast, out is.
void backward_with_cast_out(const SwigluBackward& args, Stream& stream) {
  using T = __nv_bfloat16;
  if (args.out_cast.scaling() != Scaling::kTensor) {
    backward_by_rows<T>(args, stream);
    return quantize({.rows = {}, .columns = args.out_cast.columns, .x = args.out, .amax = {}, .amax_out = {}}, stream);
  }
  const CastArguments out = cast_arguments(args.out_cast, args.d_out.dim(0), args.d_out.dim(1), {});
  const bool aligned = rows_are_aligned<T>(out.n, {args.d_gate_up.raw(), args.d_out.raw(), args.gate_up.raw()}) &&
                       rows_are_aligned<uint8_t>(out.m, {out.columns});
  auto* kernel = aligned ? swiglu_backward_tile_kernel<true> : swiglu_backward_tile_kernel<false>;
  launch("swiglu_backward", kernel, tiles(out.m, out.n), stream, pointer<T>(args.d_gate_up),
         pointer<const T>(args.d_out), pointer<const T>(args.gate_up), pointer<float>(args.amax), out);
}

// The gradient is cast, and out where it is wanted.
template <Scaling kScaling>
void backward_with_cast(const SwigluBackward& args, Stream& stream) {
  using T = __nv_bfloat16;
  const int64_t m = args.d_out.dim(0);
  const int64_t n = args.d_out.dim(1);
  const BackwardSource<kScaling> source{pointer<const T>(args.d_out), pointer<const T>(args.gate_up),
                                        cast_arguments(args.out_cast, m, n, {})};
  const bool aligned = rows_are_aligned<T>(n, {source.d_out, source.gate_up}) &&
                       (source.out.columns == nullptr || rows_are_aligned<uint8_t>(m, {source.out.columns}));
  with_format(args.cast.format(), [&]<Format kFormat>() {
    launch_cast<kScaling, kFormat>("swiglu_backward", source, aligned, cast_arguments(args.cast, m, n, args.amax),
                                   stream);
  });
}

}  // namespace

void swiglu_backward(const SwigluBackward& args, Stream& stream) {
  if (!args.cast.defined() && !args.out_cast.defined()) {
    return with_element(args.d_out.dtype(), [&]<typename T>() { backward_by_rows<T>(args, stream); });
  }
  if (!args.cast.defined()) return backward_with_cast_out(args, stream);
  if (args.cast.scaling() == Scaling::kTensor) return backward_with_cast<Scaling::kTensor>(args, stream);
  backward_with_cast<Scaling::kBlock1x128>(args, stream);
}

}  // namespace octavo::cuda
