// Counter-based random numbers. The number at an index is a function of a key and the index only, so any part of a
// sequence can be generated anywhere and in any order.
//
// The CPU and the GPU compile this header. Normal numbers are computed with operations that IEEE 754 rounds correctly.
// `Math` has one function per operation, so that no compiler fuses or splits any, and both devices get the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "core/mix_bits.h"

namespace octavo {

constexpr uint64_t random_bits(uint64_t key, uint64_t index) { return mix_bits(key ^ mix_bits(index)); }

// Returns ln x for a positive normal x, with a relative error of about 2^-23 where ln x is below -1/2. With x = 2^e m,
// sqrt(1/2) <= m < sqrt(2), ln x is e ln 2 plus the polynomial in m - 1 of the Cephes library (Moshier, logf.c).
template <typename Math>
constexpr float natural_logarithm(float x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const auto word = std::bit_cast<uint32_t>(x);
  const int32_t exponent = static_cast<int32_t>(word - kSqrtHalf) >> 23;
  const float f = Math::subtract(std::bit_cast<float>(word - (static_cast<uint32_t>(exponent) << 23)), 1.0f);
  float p = 7.0376836292e-2f;
  p = Math::fma(p, f, -1.1514610310e-1f);
  p = Math::fma(p, f, 1.1676998740e-1f);
  p = Math::fma(p, f, -1.2420140846e-1f);
  p = Math::fma(p, f, 1.4249322787e-1f);
  p = Math::fma(p, f, -1.6668057665e-1f);
  p = Math::fma(p, f, 2.0000714765e-1f);
  p = Math::fma(p, f, -2.4999993993e-1f);
  p = Math::fma(p, f, 3.3333331174e-1f);
  p = Math::fma(p, f, -0.5f);
  p = Math::fma(p, Math::multiply(f, f), f);
  return Math::fma(static_cast<float>(exponent), 0.693147181f, p);
}

// Returns a standard normal number for 64 random bits by the inverse of its distribution function. The upper 32 bits h
// are the tail probability p = (h + 1/2) / 2^33, and one other bit is the sign. So the largest magnitude is 6.44.
// Computed by PPND7 (Wichura, algorithm AS 241, Applied Statistics 37, 1988), within 5e-7 of the exact number for p. p
// is never below e^-25, so that branch of the algorithm is left out.
template <typename Math>
constexpr float standard_normal(uint64_t bits) {
  const auto high = static_cast<uint32_t>(bits >> 32);
  const float p = Math::fma(Math::from_integer(high), 0x1p-33f, 0x1p-34f);
  // q = 1/2 - p, which is exact even if it is small.
  const float q = Math::fma(Math::from_integer(~high), 0x1p-33f, 0x1p-34f);
  const float r = Math::fma(-q, q, 0.180625f);
  float a = Math::fma(59.109374720f, r, 159.29113202f);
  a = Math::fma(a, r, 50.434271938f);
  a = Math::fma(a, r, 3.3871327179f);
  float b = Math::fma(67.187563600f, r, 78.757757664f);
  b = Math::fma(b, r, 17.895169469f);
  b = Math::fma(b, r, 1.0f);
  const float t = Math::subtract(Math::sqrt(-natural_logarithm<Math>(p)), 1.6f);
  float c = Math::fma(0.17023821103f, t, 1.3067284816f);
  c = Math::fma(c, t, 2.7568153900f);
  c = Math::fma(c, t, 1.4234372777f);
  float d = Math::fma(0.12021132975f, t, 0.73700164250f);
  d = Math::fma(d, t, 1.0f);
  const bool central = q <= 0.425f;
  const float magnitude = Math::divide(central ? Math::multiply(q, a) : c, central ? b : d);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) ^ static_cast<uint32_t>(bits << 31));
}

}  // namespace octavo
