// The scalings of FP8 operands, each a row of kScalings, and the place of an element's scale, for host and device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// The elements that share one scale, in a quantized operand [rows, k] with k innermost.
enum class Scaling : uint8_t {
  kTensor,        // all elements: scale_inv [1]
  kRow,           // a row: scale_inv [rows]
  kBlock1x128,    // 128 adjacent elements of a row: scale_inv [ceil(k/128), rows]
  kBlock128x128,  // a square of 128 x 128: scale_inv [ceil(rows/128), round_up(ceil(k/128), 4)], with unused padding
};

struct ScalingTraits {
  Scaling scaling;
  const char* name;     // in messages
  const char* matmul;   // name, in machine files, of matmuls whose activations have this scaling
  bool takes_amax;      // whether the caller gives the amax, or a bound, that the scale is computed from
  bool measures_apart;  // whether a separate pass, before the cast, finds the scales
  bool casts_results;   // whether an op can cast its own result (Fp8Cast)
  bool one_per_tile;    // whether the elements of a tile of 128 x 128 share one scale
  bool scales_first;    // whether the first operand of a matmul can have this scaling
  bool blockwise;       // whether blocks share scales: a matmul may mix such scalings, without fast accumulation
};

// clang-format off
inline constexpr ScalingTraits kScalings[] = {
    // scaling                 name       matmul            amax   apart  results one_per_tile first  blockwise
    {Scaling::kTensor,        "tensor",  "fp8_tensorwise", true,  false, true,   true,        true,  false},
    {Scaling::kRow,           "row",     "fp8_rowwise",    false, true,  false,  false,       true,  false},
    {Scaling::kBlock1x128,    "1x128",   "fp8_blockwise",  false, false, true,   false,       true,  true},
    {Scaling::kBlock128x128,  "128x128", "fp8_blockwise",  false, false, false,  true,        false, true},
};
// clang-format on

constexpr const ScalingTraits& traits(Scaling scaling) { return kScalings[static_cast<size_t>(scaling)]; }

inline constexpr int64_t kScaleBlock = 128;
constexpr int64_t scale_blocks(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }
// Returns the distance in scale_inv, in elements, from a row of 128 x 128 squares to the next.
constexpr int64_t square_stride(int64_t k) { return (scale_blocks(k) + 3) / 4 * 4; }

// Returns the number of elements of scale_inv of an operand [rows, k].
constexpr int64_t fp8_scale_count(Scaling scaling, int64_t rows, int64_t k) {
  switch (scaling) {
    case Scaling::kTensor:
      return 1;
    case Scaling::kRow:
      return rows;
    case Scaling::kBlock1x128:
      return scale_blocks(k) * rows;
    case Scaling::kBlock128x128:
      return scale_blocks(rows) * square_stride(k);
  }
  return 0;
}

// Returns the index in scale_inv of the scale of element (row, i) of an operand [rows, k].
constexpr int64_t scale_index(Scaling scaling, int64_t rows, int64_t k, int64_t row, int64_t i) {
  switch (scaling) {
    case Scaling::kTensor:
      return 0;
    case Scaling::kRow:
      return row;
    case Scaling::kBlock1x128:
      return i / kScaleBlock * rows + row;
    case Scaling::kBlock128x128:
      return row / kScaleBlock * square_stride(k) + i / kScaleBlock;
  }
  return 0;
}

}  // namespace octavo
