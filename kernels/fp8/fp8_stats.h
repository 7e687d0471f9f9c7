// How well an FP8 cast fits its tensor: counts and extremes over x [m, n], its quantized elements q and their scales
// (kernels/fp8/fp8.h). Some casts may add to the same numbers, as those of a step's micro-batches do.
//
//   elements    of x
//   non_zero    of them, x != 0; NaN is one
//   saturated   the cast clamped: rounding x * scale to nearest, without a bound, would have given more than fp8_max.
//               That is |x * scale| finite and above 464 in e4m3, from 61440 on in e5m2, halfway to the next step. What
//               lies between fp8_max and there loses no more than other roundings do, and the amax itself lands there
//               now and then, as its product with its own scale is rounded.
//   flushed     x != 0, but q is 0
//   amax        max |x|; as elsewhere NaN and infinity win
//   scale_inv   the largest, so 1 / scale_inv is the smallest scale
//   scale       the largest; fp8_max / 1e-12 where nothing but zeros share one
//
// Counts of one call are exact before they are added, in float32: up to 2^24 they stay exact, beyond each addition
// rounds. Queued; deterministic.
#pragma once

#include "kernels/fp8/fp8.h"

namespace octavo {

// Places in Fp8Stats::sums and maxima.
struct Fp8Sum {
  enum : int64_t { kElements, kNonZero, kSaturated, kFlushed, kCount };
};
struct Fp8Maximum {
  enum : int64_t { kAmax, kScaleInv, kScale, kCount };
};

// Sums that are counted: all but the elements.
inline constexpr int kFp8Counts = Fp8Sum::kCount - 1;

struct Fp8Stats {
  Tensor sums;      // += [Fp8Sum::kCount] float32
  Tensor maxima;    // = max(itself, new) [Fp8Maximum::kCount] float32; starts at zero bytes
  Fp8Operand rows;  // [m, n], as quantize() made it from x
  Tensor x;         // [m, n] float32 or bfloat16
  Tensor amax;      // kTensor: [1] float32, what the scale was made of; not used by the other scalings
};
void fp8_stats(const Fp8Stats& args, Stream& stream);

int64_t fp8_stats_workspace_bytes(const Stream& stream);

// The bits of the smallest float32 that counts as saturated once it is scaled.
constexpr uint32_t fp8_saturated_bits(DType format) {
  return format == DType::kFloat8E4M3 ? 0x43e80001u : 0x47700000u;  // nextafter(464), 61440
}

}  // namespace octavo
