// The tiles in which CUDA kernels cast to FP8 and transpose FP8. A block has a tile of 128 x 128 elements, and each of
// its threads has a thread tile of 8 x 8 elements in registers. Rows are stored from registers, columns through a
// transposed tile in shared memory. All memory is read and written 16 bytes at a time, so the rows of matrices must
// start at multiples of 16 bytes (expect_aligned). The config requires sizes that are multiples of 16.
#pragma once

#include <cuda_fp8.h>

#include <iterator>

#include "kernels/cuda/amax.cuh"
#include "kernels/fp8/scaling.h"

#ifdef __CUDACC__

namespace octavo::cuda {

using Format = __nv_fp8_interpretation_t;

constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / 32;
constexpr int kTile = 128;
constexpr int kThreadTile = 8;
constexpr int kThreadTilesAcross = kTile / kThreadTile;

// ---- Arithmetic, as in kernels/fp8/fp8.cpp

template <Format kFormat>
__device__ float scale_of(float amax) {
  constexpr float kMax = kFormat == __NV_E4M3 ? 448.0f : 57344.0f;
  // A NaN keeps its bits, except that it becomes quiet, like on the CPU.
  if (isnan(amax)) return __uint_as_float(__float_as_uint(amax) | 0x00400000u);
  return __fdiv_rn(kMax, amax < 1e-12f ? 1e-12f : amax);
}

__device__ inline float inverse_of(float scale) { return isnan(scale) ? scale : __fdiv_rn(1.0f, scale); }

// Casts two elements. The first is in the low byte.
template <Format kFormat>
__device__ uint32_t cast_pair(float a, float a_scale, float b, float b_scale) {
  float2 scaled{__fmul_rn(a, a_scale), __fmul_rn(b, b_scale)};
  // Infinity must become NaN, but the instruction would saturate it. infinity * 0 + infinity is NaN; a finite x stays.
  scaled.x = __fmaf_rn(scaled.x, 0.0f, scaled.x);
  scaled.y = __fmaf_rn(scaled.y, 0.0f, scaled.y);
  return __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kFormat);
}

// ---- Patches

// Returns the shape of a launch with one block per tile of a matrix [m, n].
inline LaunchShape tiles(int64_t m, int64_t n) {
  return {grid_dim(ceil_div(m, kTile) * ceil_div(n, kTile)), kTileThreads};
}

struct ThreadPosition {
  int64_t row;     // row of the tile's first element
  int64_t column;  // column of the tile's first element
  int thread_row;  // position of the thread tile in the tile, in thread tiles
  int thread_column;
};

// Returns the position of this thread. The first block has the last tile, because the last tiles of a tensor that was
// just written or measured are still in the L2 cache.
__device__ inline ThreadPosition position_of_thread(int64_t n) {
  const int64_t tiles_across = ceil_div(n, kTile);
  const int64_t i = gridDim.x - 1 - blockIdx.x;
  return {.row = i / tiles_across * kTile,
          .column = i % tiles_across * kTile,
          .thread_row = static_cast<int>(threadIdx.x) / kThreadTilesAcross,
          .thread_column = static_cast<int>(threadIdx.x) % kThreadTilesAcross};
}

// Converts a row of a thread tile to float32.
template <typename T>
__device__ void widen_row(const Vec<T> (&row)[kThreadTile / kVector<T>], float (&x)[kThreadTile]) {
#pragma unroll
  for (int v = 0; v < kThreadTile / kVector<T>; ++v) {
    float part[kVector<T>];
    row[v].widen(part);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) x[v * kVector<T> + i] = part[i];
  }
}

template <typename T>
struct ThreadTile {
  static constexpr int kVectors = kThreadTile / kVector<T>;
  Vec<T> rows[kThreadTile][kVectors];  // zeros outside x

  __device__ void widen(int row, float (&x)[kThreadTile]) const { widen_row(rows[row], x); }

  __device__ void narrow(int row, const float (&x)[kThreadTile]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float part[kVector<T>];
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) part[i] = x[v * kVector<T> + i];
      rows[row][v] = Vec<T>::narrow(part);
    }
  }

  __device__ uint32_t row_magnitude(int row) const {
    Magnitude<T> largest;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) largest.add(rows[row][v]);
    return largest.float_bits();
  }

  __device__ void column_magnitudes(uint32_t (&bits)[kThreadTile]) const {
    constexpr int kPerWord = kVector<T> / 4;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Magnitude<T> words[4];
#pragma unroll
      for (int row = 0; row < kThreadTile; ++row) {
        words[0].add_word(rows[row][v].bits.x);
        words[1].add_word(rows[row][v].bits.y);
        words[2].add_word(rows[row][v].bits.z);
        words[3].add_word(rows[row][v].bits.w);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t* out = bits + v * kVector<T> + w * kPerWord;
        if constexpr (kPerWord == 1) out[0] = words[w].bits;
        if constexpr (kPerWord == 2) {
          out[0] = words[w].bits << 16;
          out[1] = words[w].bits & 0xffff0000u;
        }
      }
    }
  }

  __device__ uint32_t magnitude() const {
    Magnitude<T> largest;
#pragma unroll
    for (int row = 0; row < kThreadTile; ++row) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) largest.add(rows[row][v]);
    }
    return largest.float_bits();
  }
};

// Returns a vector of the elements at p, or zeros if `count` is not positive.
template <typename T>
__device__ Vec<T> load_some(const T* p, int64_t count) {
  return count > 0 ? Vec<T>::load_streaming(p) : Vec<T>{};
}

// Loads this thread's tile of a matrix [m, n] whose rows are `stride` elements apart.
template <typename T>
__device__ ThreadTile<T> load_thread_tile(const T* x, int64_t m, int64_t n, int64_t stride, const ThreadPosition& at) {
  ThreadTile<T> thread_tile;
  const int64_t row = at.row + at.thread_row * kThreadTile;
  const int64_t column = at.column + at.thread_column * kThreadTile;
#pragma unroll
  for (int r = 0; r < kThreadTile; ++r) {
#pragma unroll
    for (int v = 0; v < ThreadTile<T>::kVectors; ++v) {
      const int64_t i = column + v * kVector<T>;
      thread_tile.rows[r][v] = load_some(x + (row + r) * stride + i, row + r < m ? n - i : 0);
    }
  }
  return thread_tile;
}

// ---- Casting and storing

// A thread tile of bytes. rows[r].x has elements 0 to 3 of row r, rows[r].y has elements 4 to 7.
struct ThreadTileBytes {
  uint2 rows[kThreadTile];
};

__device__ inline void transpose_4x4(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t (&out)[4]) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

__device__ inline ThreadTileBytes transpose(const ThreadTileBytes& p) {
  ThreadTileBytes out;
  uint32_t block[4];
  transpose_4x4(p.rows[0].x, p.rows[1].x, p.rows[2].x, p.rows[3].x, block);
#pragma unroll
  for (int i = 0; i < 4; ++i) out.rows[i].x = block[i];
  transpose_4x4(p.rows[4].x, p.rows[5].x, p.rows[6].x, p.rows[7].x, block);
#pragma unroll
  for (int i = 0; i < 4; ++i) out.rows[i].y = block[i];
  transpose_4x4(p.rows[0].y, p.rows[1].y, p.rows[2].y, p.rows[3].y, block);
#pragma unroll
  for (int i = 0; i < 4; ++i) out.rows[4 + i].x = block[i];
  transpose_4x4(p.rows[4].y, p.rows[5].y, p.rows[6].y, p.rows[7].y, block);
#pragma unroll
  for (int i = 0; i < 4; ++i) out.rows[4 + i].y = block[i];
  return out;
}

// Casts a row of a thread tile, in which scale(c) is the scale of element c.
template <Format kFormat, typename Scale>
__device__ uint2 cast_row(const float (&x)[kThreadTile], Scale scale) {
  uint32_t pairs[kThreadTile / 2];
#pragma unroll
  for (int c = 0; c < kThreadTile; c += 2) pairs[c / 2] = cast_pair<kFormat>(x[c], scale(c), x[c + 1], scale(c + 1));
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// Casts a row of a thread tile with one scale.
template <Format kFormat, typename T>
__device__ uint2 cast_row(const Vec<T> (&row)[kThreadTile / kVector<T>], float scale) {
  float x[kThreadTile];
  widen_row(row, x);
  return cast_row<kFormat>(x, [&](int) { return scale; });
}

// Casts a thread tile, in which scale(r, c) is the scale of element (r, c).
template <Format kFormat, typename T, typename Scale>
__device__ ThreadTileBytes cast_thread_tile(const ThreadTile<T>& thread_tile, Scale scale) {
  ThreadTileBytes out;
#pragma unroll
  for (int r = 0; r < kThreadTile; ++r) {
    float x[kThreadTile];
    thread_tile.widen(r, x);
    out.rows[r] = cast_row<kFormat>(x, [&](int c) { return scale(r, c); });
  }
  return out;
}

// Returns 16 bytes of x [rows, columns] from (row, column) on, with zeros outside x.
__device__ inline uint4 load_16(const uint8_t* x, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  if (row >= rows || column >= columns) return make_uint4(0, 0, 0, 0);
  return __ldcs(reinterpret_cast<const uint4*>(x + row * columns + column));
}

// Stores 16 bytes at `column` of the row that starts at `out`, unless the row ends before it.
__device__ inline void store_16(uint8_t* out, uint4 bytes, int64_t column, int64_t end) {
  if (column < end) __stcs(reinterpret_cast<uint4*>(out + column), bytes);
}

// Stores the thread tiles of a tile of a matrix with m rows and columns up to `end`, whose rows are `stride` bytes
// apart in `out`. Neighbouring threads swap halves of two rows, so that each has 16 bytes of one row.
__device__ inline void store_rows(uint8_t* out, const ThreadTileBytes& thread_tile, const ThreadPosition& at, int64_t m,
                                  int64_t end, int64_t stride) {
  const bool odd = threadIdx.x % 2 != 0;
  const int64_t column = at.column + (at.thread_column & ~1) * kThreadTile;
#pragma unroll
  for (int r = 0; r < kThreadTile; r += 2) {
    const uint2 give = odd ? thread_tile.rows[r] : thread_tile.rows[r + 1];
    const uint2 keep = odd ? thread_tile.rows[r + 1] : thread_tile.rows[r];
    const uint2 got{__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1)};
    const uint4 bytes = odd ? make_uint4(got.x, got.y, keep.x, keep.y) : make_uint4(keep.x, keep.y, got.x, got.y);
    const int64_t row = at.row + at.thread_row * kThreadTile + r + (odd ? 1 : 0);
    if (row < m) store_16(out + row * stride, bytes, column, end);
  }
}

// Loads the thread tiles of a tile of x [m, n], in bytes. A thread loads 16 bytes of a row, and neighbours swap halves.
__device__ inline ThreadTileBytes load_rows(const uint8_t* x, const ThreadPosition& at, int64_t m, int64_t n) {
  const bool odd = threadIdx.x % 2 != 0;
  const int64_t column = at.column + (at.thread_column & ~1) * kThreadTile;
  uint4 loaded[kThreadTile / 2];
#pragma unroll
  for (int r = 0; r < kThreadTile; r += 2) {
    const int64_t row = at.row + at.thread_row * kThreadTile + r + (odd ? 1 : 0);
    loaded[r / 2] = load_16(x, row, m, column, n);
  }
  ThreadTileBytes thread_tile;
#pragma unroll
  for (int r = 0; r < kThreadTile; r += 2) {
    const uint4 bytes = loaded[r / 2];
    const uint2 give = odd ? make_uint2(bytes.x, bytes.y) : make_uint2(bytes.z, bytes.w);
    const uint2 keep = odd ? make_uint2(bytes.z, bytes.w) : make_uint2(bytes.x, bytes.y);
    const uint2 got{__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1)};
    thread_tile.rows[r] = odd ? got : keep;
    thread_tile.rows[r + 1] = odd ? keep : got;
  }
  return thread_tile;
}

// The tile's transpose in shared memory. Row c holds column c of the tile in 16 units of 8 bytes. Unit u is stored at u
// ^ (c / 8). The threads of a half warp each write one unit, in rows that are 8 apart, and the xor spreads these writes
// over all banks.
struct alignas(16) TransposedTile {  // read 16 bytes at a time
  uint2 units[kTile][kThreadTilesAcross];
};

// Stores the transposes of the thread tiles of a tile of a matrix with m rows and columns up to `end`. Row c of `out`,
// m bytes, is column c of the matrix.
__device__ inline void store_columns(uint8_t* out, const ThreadTileBytes& thread_tile, const ThreadPosition& at,
                                     int64_t m, int64_t end, TransposedTile& tile) {
  const ThreadTileBytes transposed = transpose(thread_tile);
#pragma unroll
  for (int c = 0; c < kThreadTile; ++c) {
    tile.units[at.thread_column * kThreadTile + c][at.thread_row ^ at.thread_column] = transposed.rows[c];
  }
  __syncthreads();
  constexpr int kChunks = kTile / 16;  // chunks of 16 bytes (two units) in a row of the transpose
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunks; i += kTileThreads) {
    const int c = i / kChunks;
    const int chunk = i % kChunks;
    const int twist = c / kThreadTile;
    const uint4 units = *reinterpret_cast<const uint4*>(&tile.units[c][(2 * chunk) ^ (twist & ~1)]);
    const uint4 bytes = twist % 2 == 0 ? units : make_uint4(units.z, units.w, units.x, units.y);
    if (at.column + c < end) store_16(out + (at.column + c) * m, bytes, at.row + chunk * 16, m);
  }
}

// ---- Host

// Throws unless the rows of a matrix can be read and written 16 bytes at a time. Absent tensors are null.
template <typename T>
void expect_aligned(const char* name, int64_t row_elements, std::initializer_list<const void*> pointers) {
  if (!rows_are_aligned<T>(row_elements, pointers)) check(cudaErrorMisalignedAddress, name);
}

// Calls f.operator()<kFormat>() with the format as a constant.
template <typename F>
void with_format(DType dtype, F&& f) {
  if (dtype == DType::kFloat8E4M3) return f.template operator()<__NV_E4M3>();
  f.template operator()<__NV_E5M2>();
}

// Calls f.operator()<kScaling>() with the scaling as a constant. With kOnly, f is compiled only for the scalings that
// have this trait.
template <bool ScalingTraits::*kOnly = nullptr, size_t kFirst = 0, typename F>
void with_scaling(Scaling scaling, F&& f) {
  if constexpr (kFirst == std::size(kScalings)) {
    check(cudaErrorInvalidValue, "choosing a kernel for a scaling that has none");
  } else {
    constexpr ScalingTraits kTraits = kScalings[kFirst];
    if constexpr (kOnly == nullptr || kTraits.*kOnly) {
      if (scaling == kTraits.scaling) return f.template operator()<kTraits.scaling>();
    }
    with_scaling<kOnly, kFirst + 1>(scaling, f);
  }
}

}  // namespace octavo::cuda

#endif  // __CUDACC__
