// FP8 casts, tile by tile (fp8_tile.cuh): x is read once whatever is asked for, but for kRow.
#include <algorithm>

#include "kernels/core/cuda_flat.cuh"
#include "kernels/fp8.h"
#include "kernels/fp8_tile.cuh"

namespace octavo::cuda {

namespace {

template <typename T>
struct QuantizeArguments {
  const T* x;  // [m, n]
  int64_t m;
  int64_t n;
  uint8_t* rows;             // [m, n]; null when not wanted
  float* rows_scale_inv;     // null when not wanted
  uint8_t* columns;          // [n, m]; null when not wanted
  float* columns_scale_inv;  // null when not wanted
  const float* amax;         // kTensor
  float* amax_out;           // may be null
};

// ---- Amaxes and scales of a tile

struct TileAmaxes {
  uint32_t rows[kTile];
  uint32_t columns[kTileWarps][kTile];  // of the 16 rows of each warp
};

// Threads 0 to 127 get the amax of the tile's row of that number, threads 128 to 255 those of its columns.
template <typename T>
__device__ float row_or_column_amax(const Patch<T>& patch, const Place& at, TileAmaxes& shared) {
#pragma unroll
  for (int r = 0; r < kPatch; ++r) {
    uint32_t bits = patch.row_magnitude(r);
#pragma unroll
    for (int offset = kPatchesAcross / 2; offset > 0; offset /= 2) {
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, offset));
    }
    if (at.patch_column == r) shared.rows[at.patch_row * kPatch + r] = bits;
  }
  uint32_t columns[kPatch];
  patch.column_magnitudes(columns);
#pragma unroll
  for (int c = 0; c < kPatch; ++c) {
    columns[c] = max(columns[c], __shfl_xor_sync(0xffffffffu, columns[c], kPatchesAcross));
  }
  if (threadIdx.x % 32 < kPatchesAcross) {
    uint32_t* out = shared.columns[threadIdx.x / 32] + at.patch_column * kPatch;
    *reinterpret_cast<uint4*>(out) = make_uint4(columns[0], columns[1], columns[2], columns[3]);
    *reinterpret_cast<uint4*>(out + 4) = make_uint4(columns[4], columns[5], columns[6], columns[7]);
  }
  __syncthreads();
  if (threadIdx.x < kTile) return __uint_as_float(shared.rows[threadIdx.x]);
  uint32_t bits = 0;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) bits = max(bits, shared.columns[warp][threadIdx.x - kTile]);
  return __uint_as_float(bits);
}

// The amax of the whole tile, for every thread.
template <typename T>
__device__ float tile_amax(const Patch<T>& patch, uint32_t (&shared)[kTileWarps]) {
  const uint32_t bits = warp_max(patch.magnitude());
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = bits;
  __syncthreads();
  uint32_t largest = 0;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) largest = max(largest, shared[warp]);
  return __uint_as_float(largest);
}

// Writes the scale of an operand's tile and, beside the last tile of a row of tiles, the padding: scales of nothing.
template <Format kFormat>
__device__ void store_square_scale(float* scale_inv, float scale, int64_t row, int64_t column, int64_t k) {
  scale_inv[square_index(row, column, k)] = inverse_of(scale);
  if (column + kTile < k) return;
  const int64_t end = square_index(row, 0, k) + round_up(ceil_div(k, kTile), 4);
  for (int64_t i = square_index(row, column, k) + 1; i < end; ++i) scale_inv[i] = inverse_of(scale_of<kFormat>(0.0f));
}

// What a tile's elements are multiplied by: one number, or one a row for `rows` and one a column for `columns`.
struct TileScales {
  float rows[kTile];
  float columns[kTile];
};

constexpr bool has_one_scale(Scaling scaling) {
  return scaling == Scaling::kTensor || scaling == Scaling::kBlock128x128;
}

template <Scaling kScaling, Format kFormat, typename T>
__device__ float find_one_scale(const QuantizeArguments<T>& args, const Patch<T>& patch, const Place& at) {
  if constexpr (kScaling == Scaling::kTensor) {
    const float scale = scale_of<kFormat>(*args.amax);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (args.rows_scale_inv != nullptr) *args.rows_scale_inv = inverse_of(scale);
      if (args.columns_scale_inv != nullptr) *args.columns_scale_inv = inverse_of(scale);
    }
    return scale;
  } else {
    __shared__ uint32_t warp_amaxes[kTileWarps];
    const float scale = scale_of<kFormat>(tile_amax(patch, warp_amaxes));
    if (threadIdx.x == 0) {
      if (args.rows_scale_inv != nullptr) {
        store_square_scale<kFormat>(args.rows_scale_inv, scale, at.row, at.column, args.n);
      }
      if (args.columns_scale_inv != nullptr) {
        store_square_scale<kFormat>(args.columns_scale_inv, scale, at.column, at.row, args.m);
      }
    }
    return scale;
  }
}

// kRow: scale_inv holds the amaxes, which a kernel after this one replaces.
template <Scaling kScaling, Format kFormat, typename T>
__device__ void find_scales(const QuantizeArguments<T>& args, const Patch<T>& patch, const Place& at,
                            TileScales& scales) {
  const bool of_row = threadIdx.x < kTile;
  const int i = static_cast<int>(threadIdx.x) % kTile;
  const int64_t line = (of_row ? at.row : at.column) + i;  // row or column of x
  const int64_t lines = of_row ? args.m : args.n;
  float* scale_inv = of_row ? args.rows_scale_inv : args.columns_scale_inv;
  const bool wanted = scale_inv != nullptr && line < lines;
  float amax = 0;
  if constexpr (kScaling == Scaling::kRow) {
    if (wanted) amax = scale_inv[line];
  } else {
    __shared__ TileAmaxes amaxes;
    amax = row_or_column_amax(patch, at, amaxes);
  }
  const float scale = scale_of<kFormat>(amax);
  (of_row ? scales.rows : scales.columns)[i] = scale;
  if (kScaling == Scaling::kBlock1x128 && wanted) {
    scale_inv[(of_row ? at.column : at.row) / kTile * lines + line] = inverse_of(scale);
  }
  __syncthreads();
}

// ---- Kernels

// Wanted outputs where they are known at compile time; kAny looks at the pointers.
enum class Outputs { kRows, kColumns, kBoth, kAny };

// Blocks that a multiprocessor must hold, to have enough loads on their way.
template <typename T>
constexpr int kMinBlocks = std::is_same_v<T, float> ? 2 : 3;

template <typename T, Format kFormat, Scaling kScaling, Outputs kOutputs>
__global__ void __launch_bounds__(kTileThreads, kMinBlocks<T>) quantize_kernel(const QuantizeArguments<T> args) {
  constexpr bool kAligned = kOutputs != Outputs::kAny;
  const bool wants_rows = kAligned ? kOutputs != Outputs::kColumns : args.rows != nullptr;
  const bool wants_columns = kAligned ? kOutputs != Outputs::kRows : args.columns != nullptr;
  __shared__ TransposedTile tile;
  const Place at = place_of_thread(args.n);
  const Patch<T> patch = load_patch<kAligned>(args.x, args.m, args.n, at);
  if (args.amax_out != nullptr) update_amax(args.amax_out, patch.magnitude());

  if constexpr (has_one_scale(kScaling)) {
    const float scale = find_one_scale<kScaling, kFormat>(args, patch, at);
    const BytePatch bytes = cast_patch<kFormat>(patch, [&](int, int) { return scale; });
    if (wants_rows) store_rows<kAligned>(args.rows, bytes, at, args.m, args.n);
    if (wants_columns) store_columns<kAligned>(args.columns, bytes, at, args.m, args.n, tile);
  } else {
    __shared__ TileScales scales;
    find_scales<kScaling, kFormat>(args, patch, at, scales);
    if (wants_rows) {
      const float* of_rows = scales.rows + at.patch_row * kPatch;
      const BytePatch bytes = cast_patch<kFormat>(patch, [&](int r, int) { return of_rows[r]; });
      store_rows<kAligned>(args.rows, bytes, at, args.m, args.n);
    }
    if (wants_columns) {
      float of_columns[kPatch];
#pragma unroll
      for (int c = 0; c < kPatch; ++c) of_columns[c] = scales.columns[at.patch_column * kPatch + c];
      const BytePatch bytes = cast_patch<kFormat>(patch, [&](int, int c) { return of_columns[c]; });
      store_columns<kAligned>(args.columns, bytes, at, args.m, args.n, tile);
    }
  }
}

// rows[r] = max(rows[r], max |x[r, :]|), columns[c] = max(columns[c], max |x[:, c]|); either may be null.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kMinBlocks<T>)
    line_amaxes_kernel(float* rows, float* columns, const T* x, int64_t m, int64_t n) {
  __shared__ TileAmaxes amaxes;
  const Place at = place_of_thread(n);
  const Patch<T> patch = load_patch<kAligned>(x, m, n, at);
  const float amax = row_or_column_amax(patch, at, amaxes);
  const bool of_row = threadIdx.x < kTile;
  const int64_t line = (of_row ? at.row : at.column) + threadIdx.x % kTile;
  float* out = of_row ? rows : columns;
  if (out != nullptr && line < (of_row ? m : n)) {
    atomicMax(reinterpret_cast<uint32_t*>(out + line), __float_as_uint(amax));
  }
}

// Replaces amaxes of rows [m] and columns [n] by the inverses of their scales; either may be null.
template <Format kFormat>
__global__ void __launch_bounds__(kTileThreads)
    amax_to_scale_inv_kernel(float* rows, int64_t m, float* columns, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (rows != nullptr && i < m) rows[i] = inverse_of(scale_of<kFormat>(rows[i]));
  if (columns != nullptr && i < n) columns[i] = inverse_of(scale_of<kFormat>(columns[i]));
}

constexpr int kAmaxThreads = 1024;
constexpr int kAmaxBlocksPerMultiprocessor = 2;

// The blocks all run at once and a thread's vectors lie a whole grid apart, so that all threads have the same work to
// within one vector and end together. They go backwards: what an op before this one wrote last is still in the L2
// cache, and what is read last here is what a cast after it reads first.
template <typename T>
__global__ void __launch_bounds__(kAmaxThreads, kAmaxBlocksPerMultiprocessor)
    amax_kernel(float* out, const T* x, int64_t head, int64_t n) {
  constexpr int N = kVector<T>;
  constexpr int kAtOnce = 4;  // loads in flight
  const int64_t vectors = (n - head) / N;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kAmaxThreads;
  int64_t i = vectors - 1 - static_cast<int64_t>(blockIdx.x) * kAmaxThreads - threadIdx.x;
  Vec<T> v[kAtOnce];
  Magnitude<T> largest;
  for (; i - (kAtOnce - 1) * stride >= 0; i -= kAtOnce * stride) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) v[u] = Vec<T>::load(x + head + (i - u * stride) * N);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) largest.add(v[u]);
  }
#pragma unroll
  for (int u = 0; u < kAtOnce - 1; ++u) {
    v[u] = i - u * stride >= 0 ? Vec<T>::load(x + head + (i - u * stride) * N) : Vec<T>{};
  }
#pragma unroll
  for (int u = 0; u < kAtOnce - 1; ++u) largest.add(v[u]);
  if (blockIdx.x == 0) {
    const int64_t tail = head + vectors * N + threadIdx.x;
    if (threadIdx.x < head) largest.add(Vec<T, 1>::load(x + threadIdx.x));
    if (tail < n) largest.add(Vec<T, 1>::load(x + tail));
  }
  const uint32_t bits = block_max(largest.float_bits());
  // The blocks end together, so that a look at the amax before would only add to the time that they wait.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<uint32_t*>(out), bits);
}

// ---- Host

template <typename T, Format kFormat, Scaling kScaling>
void launch_cast(const QuantizeArguments<T>& args, Stream& stream) {
  const bool aligned = rows_are_aligned<T>(args.n, {args.x}) &&
                       (args.rows == nullptr || rows_are_aligned<uint8_t>(args.n, {args.rows})) &&
                       (args.columns == nullptr || rows_are_aligned<uint8_t>(args.m, {args.columns}));
  auto* kernel = quantize_kernel<T, kFormat, kScaling, Outputs::kAny>;
  if (aligned) {
    kernel = args.columns == nullptr ? quantize_kernel<T, kFormat, kScaling, Outputs::kRows>
             : args.rows == nullptr  ? quantize_kernel<T, kFormat, kScaling, Outputs::kColumns>
                                     : quantize_kernel<T, kFormat, kScaling, Outputs::kBoth>;
  }
  launch("quantize", kernel, tiles(args.m, args.n), stream, args);
}

// kRow takes two passes over x, as a row's amax is not known before its end.
template <typename T, Format kFormat>
void quantize_by_row(const QuantizeArguments<T>& args, const Quantize& tensors, Stream& stream) {
  for (const Fp8Operand* operand : {&tensors.rows, &tensors.columns}) {
    if (operand->defined()) stream.zero(operand->scale_inv);
  }
  const bool aligned = rows_are_aligned<T>(args.n, {args.x});
  launch("quantize amaxes", aligned ? line_amaxes_kernel<T, true> : line_amaxes_kernel<T, false>, tiles(args.m, args.n),
         stream, args.rows_scale_inv, args.columns_scale_inv, args.x, args.m, args.n);
  launch_cast<T, kFormat, Scaling::kRow>(args, stream);
  launch("quantize scales", amax_to_scale_inv_kernel<kFormat>,
         {grid_dim(ceil_div(std::max(args.m, args.n), kTileThreads)), kTileThreads}, stream, args.rows_scale_inv,
         args.m, args.columns_scale_inv, args.n);
}

template <typename T, Format kFormat>
void quantize_as(const Quantize& tensors, Stream& stream) {
  const QuantizeArguments<T> args{.x = pointer<const T>(tensors.x),
                                  .m = tensors.x.dim(0),
                                  .n = tensors.x.dim(1),
                                  .rows = pointer<uint8_t>(tensors.rows.data),
                                  .rows_scale_inv = pointer<float>(tensors.rows.scale_inv),
                                  .columns = pointer<uint8_t>(tensors.columns.data),
                                  .columns_scale_inv = pointer<float>(tensors.columns.scale_inv),
                                  .amax = pointer<const float>(tensors.amax),
                                  .amax_out = pointer<float>(tensors.amax_out)};
  switch (tensors.rows.defined() ? tensors.rows.scaling : tensors.columns.scaling) {
    case Scaling::kTensor:
      return launch_cast<T, kFormat, Scaling::kTensor>(args, stream);
    case Scaling::kRow:
      return quantize_by_row<T, kFormat>(args, tensors, stream);
    case Scaling::kBlock1x128:
      return launch_cast<T, kFormat, Scaling::kBlock1x128>(args, stream);
    case Scaling::kBlock128x128:
      return launch_cast<T, kFormat, Scaling::kBlock128x128>(args, stream);
  }
}

}  // namespace

void quantize(const Quantize& args, Stream& stream) {
  const DType format = args.rows.defined() ? args.rows.data.dtype() : args.columns.data.dtype();
  with_element(args.x.dtype(), [&]<typename T>() {
    if (format == DType::kFloat8E4M3) return quantize_as<T, __NV_E4M3>(args, stream);
    quantize_as<T, __NV_E5M2>(args, stream);
  });
}

void amax(const Amax& args, Stream& stream) {
  const int64_t n = args.x.numel();
  with_element(args.x.dtype(), [&]<typename T>() {
    const auto* x = pointer<const T>(args.x);
    const int64_t head = flat_shape<kVector<T>>(n, x).head;
    const int64_t blocks = std::min<int64_t>(ceil_div(n, kAmaxThreads * kVector<T>),
                                             kAmaxBlocksPerMultiprocessor * stream.multiprocessors());
    launch("amax", amax_kernel<T>, {grid_dim(blocks), kAmaxThreads}, stream, pointer<float>(args.out), x, head, n);
  });
}

}  // namespace octavo::cuda
