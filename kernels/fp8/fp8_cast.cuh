// A kernel that computes a result and casts it to FP8, tile by tile (fp8_tile.cuh). A Source computes the result. It is
// a struct of pointers and sizes, a kernel argument, with these members:
//
//   Element     float or __nv_bfloat16, the dtype of the result, to which values are rounded before the cast
//   kParts      number of matrices [m, n] that the result [m, kParts * n] consists of, side by side; they are computed
//               from the same inputs. With kBlock1x128 and several parts, n is a multiple of 128.
//   kMinBlocks  number of blocks that a multiprocessor must hold to have enough loads in flight
//   make(parts, m, n, at)  computes the thread tile of each part at a position of [m, n], with zeros outside [m, n]
#pragma once

#include "kernels/fp8/fp8_cast.h"
#include "kernels/fp8/fp8_tile.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

struct CastArguments {
  int64_t m;
  int64_t n;                 // columns of a part
  uint8_t* rows;             // null when not wanted
  float* rows_scale_inv;     // null when not wanted
  uint8_t* columns;          // null when not wanted
  float* columns_scale_inv;  // null when not wanted
  const float* amax;         // takes_amax: the amax that the scale is computed from; null means that `bound` is used
  float* amax_out;           // may be null
  float bound = 0;
};

// The destination of a gradient: memory in its own dtype, or a cast.
enum class GradientTo { kMemory, kE4M3, kE5M2 };
constexpr Format format_of(GradientTo to) { return to == GradientTo::kE5M2 ? __NV_E5M2 : __NV_E4M3; }

// The position of a tile in the whole result.
struct PartPosition : ThreadPosition {
  int64_t end;    // end of the columns of the tile's part
  int64_t width;  // number of columns of the result
};

// ---- Amaxes and scales of a tile

struct TileAmaxes {
  uint32_t rows[kTile];
  alignas(16) uint32_t columns[kTileWarps][kTile];  // over the 16 rows of each warp; written 16 bytes at a time
};

// Returns the amax of row t of the tile in thread t < 128, and of column t - 128 in the other threads.
template <typename T>
__device__ float row_or_column_amax(const ThreadTile<T>& thread_tile, const ThreadPosition& at, TileAmaxes& shared) {
#pragma unroll
  for (int r = 0; r < kThreadTile; ++r) {
    uint32_t bits = thread_tile.row_magnitude(r);
#pragma unroll
    for (int offset = kThreadTilesAcross / 2; offset > 0; offset /= 2) {
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, offset));
    }
    if (at.thread_column == r) shared.rows[at.thread_row * kThreadTile + r] = bits;
  }
  uint32_t columns[kThreadTile];
  thread_tile.column_magnitudes(columns);
#pragma unroll
  for (int c = 0; c < kThreadTile; ++c) {
    columns[c] = max(columns[c], __shfl_xor_sync(0xffffffffu, columns[c], kThreadTilesAcross));
  }
  if (threadIdx.x % 32 < kThreadTilesAcross) {
    uint32_t* out = shared.columns[threadIdx.x / 32] + at.thread_column * kThreadTile;
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

// Returns the amax of the whole tile in every thread.
template <typename T>
__device__ float tile_amax(const ThreadTile<T>& thread_tile, uint32_t (&shared)[kTileWarps]) {
  const uint32_t bits = warp_max(thread_tile.magnitude());
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = bits;
  __syncthreads();
  uint32_t largest = 0;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) largest = max(largest, shared[warp]);
  return __uint_as_float(largest);
}

// Writes the inverse of the scale of the tile at (row, column) of an operand [rows, k]. The last tile of a row of tiles
// also writes the padding, as if its elements were zeros.
template <Scaling kScaling, Format kFormat>
__device__ void store_tile_scale(float* scale_inv, float scale, int64_t rows, int64_t k, int64_t row, int64_t column) {
  const auto index = [&](int64_t i) { return scale_index(kScaling, rows, k, row, i); };
  scale_inv[index(column)] = inverse_of(scale);
  if (column + kTile < k) return;
  const int64_t end = index(0) + square_stride(k);
  for (int64_t i = index(column) + 1; i < end; ++i) scale_inv[i] = inverse_of(scale_of<kFormat>(0.0f));
}

// The scales of a tile: one per row for the operand `rows` and one per column for the operand `columns`.
struct TileScales {
  float rows[kTile];
  float columns[kTile];
};

// Returns the scale for a scaling with takes_amax, which is known before the tile is computed. One thread of the grid
// writes the inverse of the scale.
template <Format kFormat>
__device__ float find_tensor_scale(const CastArguments& args) {
  const float scale = scale_of<kFormat>(args.amax != nullptr ? *args.amax : args.bound);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (args.rows_scale_inv != nullptr) *args.rows_scale_inv = inverse_of(scale);
    if (args.columns_scale_inv != nullptr) *args.columns_scale_inv = inverse_of(scale);
  }
  return scale;
}

// Returns the scale for a scaling with one_per_tile, and writes the inverse of the scale.
template <Scaling kScaling, Format kFormat, typename T>
__device__ float find_one_scale(const CastArguments& args, const ThreadTile<T>& thread_tile, const PartPosition& at) {
  if constexpr (traits(kScaling).takes_amax) {
    return find_tensor_scale<kFormat>(args);
  } else {
    __shared__ uint32_t warp_amaxes[kTileWarps];
    const float scale = scale_of<kFormat>(tile_amax(thread_tile, warp_amaxes));
    if (threadIdx.x == 0) {
      if (args.rows_scale_inv != nullptr) {
        store_tile_scale<kScaling, kFormat>(args.rows_scale_inv, scale, args.m, at.width, at.row, at.column);
      }
      if (args.columns_scale_inv != nullptr) {
        store_tile_scale<kScaling, kFormat>(args.columns_scale_inv, scale, at.width, args.m, at.column, at.row);
      }
    }
    return scale;
  }
}

// Computes the scales of the tile. With measures_apart, scale_inv holds the amaxes, and a later kernel replaces them by
// the inverse scales. Otherwise this function writes the inverse scales.
template <Scaling kScaling, Format kFormat, typename T>
__device__ void find_scales(const CastArguments& args, const ThreadTile<T>& thread_tile, const PartPosition& at,
                            TileScales& scales) {
  constexpr bool kMeasuresApart = traits(kScaling).measures_apart;
  const bool of_row = threadIdx.x < kTile;
  const int i = static_cast<int>(threadIdx.x) % kTile;
  const int64_t line = (of_row ? at.row : at.column) + i;  // row or column of x
  float* scale_inv = of_row ? args.rows_scale_inv : args.columns_scale_inv;
  const bool wanted = scale_inv != nullptr && line < (of_row ? args.m : at.end);
  const auto index = [&] {
    const int64_t rows = of_row ? args.m : at.width;
    const int64_t k = of_row ? at.width : args.m;
    return scale_index(kScaling, rows, k, line, of_row ? at.column : at.row);
  };
  float amax = 0;
  if constexpr (kMeasuresApart) {
    if (wanted) amax = scale_inv[index()];
  } else {
    __shared__ TileAmaxes amaxes;
    amax = row_or_column_amax(thread_tile, at, amaxes);
  }
  const float scale = scale_of<kFormat>(amax);
  (of_row ? scales.rows : scales.columns)[i] = scale;
  if (!kMeasuresApart && wanted) scale_inv[index()] = inverse_of(scale);
  __syncthreads();
}

// ---- The kernel

template <Scaling kScaling, Format kFormat, typename T>
__device__ void cast_tile(const CastArguments& args, const ThreadTile<T>& thread_tile, const PartPosition& at,
                          bool wants_rows, bool wants_columns) {
  __shared__ TransposedTile tile;
  if constexpr (traits(kScaling).one_per_tile) {
    const float scale = find_one_scale<kScaling, kFormat>(args, thread_tile, at);
    const ThreadTileBytes bytes = cast_thread_tile<kFormat>(thread_tile, [&](int, int) { return scale; });
    if (wants_rows) store_rows(args.rows, bytes, at, args.m, at.end, at.width);
    if (wants_columns) store_columns(args.columns, bytes, at, args.m, at.end, tile);
  } else {
    __shared__ TileScales scales;
    find_scales<kScaling, kFormat>(args, thread_tile, at, scales);
    if (wants_rows) {
      const float* of_rows = scales.rows + at.thread_row * kThreadTile;
      const ThreadTileBytes bytes = cast_thread_tile<kFormat>(thread_tile, [&](int r, int) { return of_rows[r]; });
      store_rows(args.rows, bytes, at, args.m, at.end, at.width);
    }
    if (wants_columns) {
      float of_columns[kThreadTile];
#pragma unroll
      for (int c = 0; c < kThreadTile; ++c) of_columns[c] = scales.columns[at.thread_column * kThreadTile + c];
      const ThreadTileBytes bytes = cast_thread_tile<kFormat>(thread_tile, [&](int, int c) { return of_columns[c]; });
      store_columns(args.columns, bytes, at, args.m, at.end, tile);
    }
  }
}

// The operands that a kernel writes.
enum class Outputs { kRows, kColumns, kBoth };

template <Scaling kScaling, Format kFormat, Outputs kOutputs, typename Source>
__global__ void __launch_bounds__(kTileThreads, Source::kMinBlocks)
    cast_kernel(const Source source, const CastArguments args) {
  constexpr bool kWantsRows = kOutputs != Outputs::kColumns;
  constexpr bool kWantsColumns = kOutputs != Outputs::kRows;
  const ThreadPosition at = position_of_thread(args.n);
  ThreadTile<typename Source::Element> parts[Source::kParts];
  source.make(parts, args.m, args.n, at);
  if (args.amax_out != nullptr) {
    uint32_t largest = 0;
#pragma unroll
    for (int p = 0; p < Source::kParts; ++p) largest = max(largest, parts[p].magnitude());
    update_amax(args.amax_out, largest);
  }
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    if (p > 0) __syncthreads();  // waits until all threads have read the previous part in shared memory
    PartPosition at_part{at, (p + 1) * args.n, Source::kParts * args.n};
    at_part.column += p * args.n;
    cast_tile<kScaling, kFormat>(args, parts[p], at_part, kWantsRows, kWantsColumns);
  }
}

// ---- Host

inline CastArguments cast_arguments(const Fp8Cast& cast, int64_t m, int64_t n, const Tensor& amax_out) {
  return {.m = m,
          .n = n,
          .rows = pointer<uint8_t>(cast.rows.data),
          .rows_scale_inv = pointer<float>(cast.rows.scale_inv),
          .columns = pointer<uint8_t>(cast.columns.data),
          .columns_scale_inv = pointer<float>(cast.columns.scale_inv),
          .amax = pointer<const float>(cast.amax),
          .amax_out = pointer<float>(amax_out),
          .bound = cast.bound.value_or(0)};
}

template <Scaling kScaling, Format kFormat, typename Source>
void launch_cast(const char* name, const Source& source, const CastArguments& args, Stream& stream) {
  if (args.rows != nullptr) expect_aligned<uint8_t>(name, args.n, {args.rows});
  if (args.columns != nullptr) expect_aligned<uint8_t>(name, args.m, {args.columns});
  auto* kernel = args.columns == nullptr ? cast_kernel<kScaling, kFormat, Outputs::kRows, Source>
                 : args.rows == nullptr  ? cast_kernel<kScaling, kFormat, Outputs::kColumns, Source>
                                         : cast_kernel<kScaling, kFormat, Outputs::kBoth, Source>;
  launch(name, kernel, tiles(args.m, args.n), stream, source, args);
}

// Queues the kernel that computes a result of parts [m, n] and casts it. amax_out may be undefined.
template <CastOf kWhat, typename Source>
void make_and_cast(const char* name, const Source& source, const Fp8Cast& cast, int64_t m, int64_t n,
                   const Tensor& amax_out, Stream& stream) {
  const CastArguments args = cast_arguments(cast, m, n, amax_out);
  const auto cast_to = [&]<Format kFormat>() {
    with_scaling<&ScalingTraits::casts_results>(
        cast.scaling(), [&]<Scaling kScaling>() { launch_cast<kScaling, kFormat>(name, source, args, stream); });
  };
  if constexpr (kWhat == CastOf::kActivation) {
    cast_to.template operator()<__NV_E4M3>();
  } else {
    with_format(cast.format(), cast_to);
  }
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
