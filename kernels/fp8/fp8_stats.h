// Statistics that tell how well an FP8 cast fits its tensor: counts and extremes over x [m, n], its quantized elements
// q and their scales (kernels/fp8/fp8.h). Several casts may add to the same numbers, such as those of the micro-batches
// of a step.
//
//   elements    number of elements of x
//   non_zero    number of elements with x != 0, including NaN
//   saturated   number of elements that the cast clamped: x * scale is finite, and would round to more than fp8_max if
//               the format had larger numbers. This is |x * scale| above 464 in e4m3, and from 61440 on in e5m2.
//               Values between fp8_max and this limit round to fp8_max with the error of any rounding. The amax itself
//               may be one of them, since amax * scale is rounded.
//   flushed     number of elements with x != 0 and q = 0
//   amax        max |x|; NaN and infinity count as the largest values
//   scale_inv   the largest one, so 1 / scale_inv is the smallest scale
//   scale       the largest one, which is fp8_max / 1e-12 if all elements that share it are zero
//
// The counts of one call are exact. They are added to float32 sums, which are exact up to 2^24. Queued on `stream`;
// deterministic.
#pragma once

#include "kernels/fp8/fp8.h"

namespace octavo {

// Indices into Fp8Stats::sums and Fp8Stats::maxima.
struct Fp8Sum {
  enum : int64_t { kElements, kNonZero, kSaturated, kFlushed, kCount };
};
struct Fp8Maximum {
  enum : int64_t { kAmax, kScaleInv, kScale, kCount };
};

// Number of sums that the kernels count. The number of elements is known without counting.
inline constexpr int kFp8Counts = Fp8Sum::kCount - 1;

struct Fp8Stats {
  Tensor sums;      // += [Fp8Sum::kCount] float32
  Tensor maxima;    // in and out, [Fp8Maximum::kCount] float32: running maxima; zero before the first call
  Fp8Operand rows;  // [m, n], the operand that quantize made from x
  Tensor x;         // [m, n] float32 or bfloat16
  Tensor amax;      // kTensor: [1] float32, the amax that the scale was computed from
};
void fp8_stats(const Fp8Stats& args, Stream& stream);

int64_t fp8_stats_workspace_bytes(const Stream& stream);

// Returns the bits of the smallest float32 x * scale that counts as saturated.
constexpr uint32_t fp8_saturated_bits(DType format) {
  return format == DType::kFloat8E4M3 ? 0x43e80001u : 0x47700000u;  // nextafter(464), 61440
}

}  // namespace octavo
