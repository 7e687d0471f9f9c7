// FP8 casts and amaxes of tensors in memory. A cast reads x once, or twice if the scaling has measures_apart
// (kernels/fp8/scaling.h).
#include <algorithm>

#include "kernels/cuda/flat.cuh"
#include "kernels/fp8/fp8_cast.cuh"
#include "kernels/fp8/fp8_cuda.h"

namespace octavo::cuda {

namespace {

template <typename T>
constexpr int kMinBlocks = std::is_same_v<T, float> ? 2 : 3;

template <typename T>
struct StoredSource {
  using Element = T;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = cuda::kMinBlocks<T>;
  const T* x;  // [m, n]

  __device__ void make(ThreadTile<T> (&parts)[kParts], int64_t m, int64_t n, const ThreadPosition& at) const {
    parts[0] = load_thread_tile(x, m, n, n, at);
  }
};

// Computes rows[r] = max(rows[r], max |x[r, :]|) and columns[c] = max(columns[c], max |x[:, c]|). Either may be null.
template <typename T>
__global__ void __launch_bounds__(kTileThreads, kMinBlocks<T>)
    line_amaxes_kernel(float* rows, float* columns, const T* x, int64_t m, int64_t n) {
  __shared__ TileAmaxes amaxes;
  const ThreadPosition at = position_of_thread(n);
  const ThreadTile<T> thread_tile = load_thread_tile(x, m, n, n, at);
  const float amax = row_or_column_amax(thread_tile, at, amaxes);
  const bool of_row = threadIdx.x < kTile;
  const int64_t line = (of_row ? at.row : at.column) + threadIdx.x % kTile;
  float* out = of_row ? rows : columns;
  if (out != nullptr && line < (of_row ? m : n)) {
    atomicMax(reinterpret_cast<uint32_t*>(out + line), __float_as_uint(amax));
  }
}

// Replaces the amaxes of rows [m] and columns [n] by the inverses of their scales. Either may be null.
template <Format kFormat>
__global__ void __launch_bounds__(kTileThreads)
    amax_to_scale_inv_kernel(float* rows, int64_t m, float* columns, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (rows != nullptr && i < m) rows[i] = inverse_of(scale_of<kFormat>(rows[i]));
  if (columns != nullptr && i < n) columns[i] = inverse_of(scale_of<kFormat>(columns[i]));
}

constexpr int kAmaxThreads = 1024;
constexpr int kAmaxBlocksPerMultiprocessor = 2;

// All blocks run at once and a thread's vectors are a whole grid apart, so the work of two threads differs by at most
// one vector and all blocks end at about the same time. The elements that are read last are those that a following cast
// reads first (fp8_tile.cuh), so they are still in the L2 cache.
template <typename T>
__global__ void __launch_bounds__(kAmaxThreads, kAmaxBlocksPerMultiprocessor)
    amax_kernel(float* out, const T* x, const float* factor, int64_t head, int64_t n) {
  constexpr int N = kVector<T>;
  constexpr int kAtOnce = 4;  // Number of vectors that a thread loads at once.
  const int64_t vectors = (n - head) / N;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kAmaxThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kAmaxThreads + threadIdx.x;
  Vec<T> v[kAtOnce];
  Magnitude<T> largest;
  for (; i + (kAtOnce - 1) * stride < vectors; i += kAtOnce * stride) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) v[u] = Vec<T>::load(x + head + (i + u * stride) * N);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) largest.add(v[u]);
  }
#pragma unroll
  for (int u = 0; u < kAtOnce - 1; ++u) {
    v[u] = i + u * stride < vectors ? Vec<T>::load(x + head + (i + u * stride) * N) : Vec<T>{};
  }
#pragma unroll
  for (int u = 0; u < kAtOnce - 1; ++u) largest.add(v[u]);
  if (blockIdx.x == 0) {
    const int64_t tail = head + vectors * N + threadIdx.x;
    if (threadIdx.x < head) largest.add(Vec<T, 1>::load(x + threadIdx.x));
    if (tail < n) largest.add(Vec<T, 1>::load(x + tail));
  }
  uint32_t bits = block_max(largest.float_bits());
  // The factor is not negative, so the largest amax gives the largest product.
  if (factor != nullptr) bits = __float_as_uint(__fmul_rn(*factor, __uint_as_float(bits))) & 0x7fffffffu;
  // All blocks end at about the same time. If they read the amax first, to skip the atomic, they would only wait
  // longer.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<uint32_t*>(out), bits);
}

// ---- Host

// Writes the amaxes of the rows of the operands into their scale_inv.
template <typename T>
void measure_lines(const Quantize& args, Stream& stream) {
  const int64_t m = args.x.dim(0);
  const int64_t n = args.x.dim(1);
  for (const Fp8Operand* operand : {&args.cast.rows, &args.cast.columns}) {
    if (operand->defined()) stream.zero(operand->scale_inv);
  }
  const auto* x = pointer<const T>(args.x);
  expect_aligned<T>("row_amaxes", n, {x});
  launch("row_amaxes", line_amaxes_kernel<T>, tiles(m, n), stream, pointer<float>(args.cast.rows.scale_inv),
         pointer<float>(args.cast.columns.scale_inv), x, m, n);
}

template <typename T, Scaling kScaling, Format kFormat>
void cast_stored(const Quantize& tensors, Stream& stream) {
  const StoredSource<T> source{pointer<const T>(tensors.x)};
  const int64_t n = tensors.x.dim(1);
  const CastArguments args = cast_arguments(tensors.cast, tensors.x.dim(0), n, tensors.amax_out);
  expect_aligned<T>("quantize", n, {source.x});
  launch_cast<kScaling, kFormat>("quantize", source, args, stream);
  if constexpr (traits(kScaling).measures_apart) {
    launch("quantize scales", amax_to_scale_inv_kernel<kFormat>,
           {grid_dim(ceil_div(std::max(args.m, args.n), kTileThreads)), kTileThreads}, stream, args.rows_scale_inv,
           args.m, args.columns_scale_inv, args.n);
  }
}

}  // namespace

void quantize(const Quantize& args, Stream& stream) {
  const Fp8Cast& cast = args.cast;
  with_element(args.x.dtype(), [&]<typename T>() {
    if (traits(cast.scaling()).measures_apart && args.passes != QuantizePasses::kCast) measure_lines<T>(args, stream);
    if (args.passes == QuantizePasses::kMeasure) return;
    with_format(cast.format(), [&]<Format kFormat>() {
      with_scaling(cast.scaling(), [&]<Scaling kScaling>() { cast_stored<T, kScaling, kFormat>(args, stream); });
    });
  });
}

void amax(const Amax& args, Stream& stream) {
  const int64_t n = args.x.numel();
  with_element(args.x.dtype(), [&]<typename T>() {
    const auto* x = pointer<const T>(args.x);
    const int64_t head = flat_shape<kVector<T>>(n, x).head;
    const int64_t blocks = std::min<int64_t>(ceil_div(n, kAmaxThreads * kVector<T>),
                                             kAmaxBlocksPerMultiprocessor * stream.multiprocessors());
    launch("amax", amax_kernel<T>, {grid_dim(blocks), kAmaxThreads}, stream, pointer<float>(args.out), x,
           pointer<const float>(args.factor), head, n);
  });
}

}  // namespace octavo::cuda
