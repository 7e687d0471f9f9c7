// The scalings of FP8 operands: one row of kScalings each, and the place of an element's scale, for host and device
// alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// What shares one scale, seen along a quantized operand [rows, k], k innermost.
enum class Scaling : uint8_t {
  kTensor,        // the whole tensor: scale_inv [1]
  kRow,           // a row: scale_inv [rows]
  kBlock1x128,    // 128 neighbours in a row: scale_inv [ceil(k/128), rows]
  kBlock128x128,  // a square of 128: scale_inv [ceil(rows/128), round_up(ceil(k/128), 4)], the padding unused
};

struct ScalingTraits {
  Scaling scaling;
  const char* name;     // in messages
  const char* product;  // of products of activations that are scaled so, in machine files
  bool takes_amax;      // the scale is made of an amax, or a bound, that the caller gives
  bool measures_apart;  // the scales are found in a pass over the values before the one that casts them
  bool casts_results;   // an op can cast what it makes (Fp8Cast)
  bool one_per_tile;    // the elements of a square of 128 share one scale
  bool scales_first;    // can be the first operand of a product
  bool blockwise;       // products of blocks: no fast accumulation, and the scalings of the operands may differ
};

// clang-format off
inline constexpr ScalingTraits kScalings[] = {
    // scaling                 name       product           amax   apart  results one_per_tile first  blockwise
    {Scaling::kTensor,        "tensor",  "fp8_tensorwise", true,  false, true,   true,        true,  false},
    {Scaling::kRow,           "row",     "fp8_rowwise",    false, true,  false,  false,       true,  false},
    {Scaling::kBlock1x128,    "1x128",   "fp8_blockwise",  false, false, true,   false,       true,  true},
    {Scaling::kBlock128x128,  "128x128", "fp8_blockwise",  false, false, false,  true,        false, true},
};
// clang-format on

constexpr const ScalingTraits& traits(Scaling scaling) { return kScalings[static_cast<size_t>(scaling)]; }

inline constexpr int64_t kScaleBlock = 128;
constexpr int64_t scale_blocks(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }
// From a row of squares to the next.
constexpr int64_t square_stride(int64_t k) { return (scale_blocks(k) + 3) / 4 * 4; }

// Elements of scale_inv of an operand [rows, k].
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

// Index in scale_inv of the scale of element (row, i) of an operand [rows, k].
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
