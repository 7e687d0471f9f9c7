// AdamW's moments in three bytes per parameter (optimizer.state_dtype: float8):
//
//   v   bfloat16
//   m   e4m3 code of 32 m / sqrt(v), with the stored v; 0 if v is 0
//
// The root of v scales m element by element, so no scales of blocks are stored with the codes, and any range of the
// states can be read alone, on any mesh. The coded ratio is bounded, by the Cauchy-Schwarz inequality on the two sums
// of gradients:
//
//   |m| / sqrt(v) <= (1 - beta1) / sqrt(1 - beta2) / sqrt(1 - beta1^2 / beta2)   if beta1^2 < beta2
//
// This is 1.17 for betas of 0.9 and 0.95 and 7.3 for 0.9 and 0.999. The largest code stands for a ratio of 14. m and v
// are rounded up or down at random so that they are unbiased on average. With rounding to nearest, a moment would not
// change if a step moves it by less than half the distance to the next code, which is the usual case for m. The random
// bits of an element are a function of the key of the step and of the element's index in the whole model
// (kernels/math/random_numbers.h, kernels/math/matrix_range.h).
//
// The CPU and the GPU compile this header. `Math` names each operation (kernels/math/rounded_math.h), so both devices
// compute the same bits of moments and weights.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/math/random_numbers.h"
#include "kernels/optimizer/adamw.h"

namespace octavo {

inline constexpr float kMomentCodeScale = 32.0f;
inline constexpr float kLargestMomentRatio = 448.0f / kMomentCodeScale;

// Returns the bound of |m| / sqrt(v), or infinity if there is none.
inline double moment_ratio_bound(double beta1, double beta2) {
  const double unbounded = std::numeric_limits<double>::infinity();
  return beta1 * beta1 < beta2 ? (1 - beta1) / std::sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2)) : unbounded;
}

// Returns the value of an e4m3 code (core/float8.h).
constexpr float e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const float value = magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : magnitude < 8 ? subnormal : normal;
  return (code & 0x80u) != 0 ? -value : value;
}

// Returns one of the two codes next to `value`, chosen by the 16 bits of `random` so that the mean is `value`. The
// probabilities are rounded to 2^-16. Values beyond the largest code, infinity and NaN are converted as in
// core/float8.h.
constexpr uint8_t random_e4m3(float value, uint32_t random) {
  const auto word = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return 0x7f;
  // Codes of subnormal values are multiples of 2^-9.
  const auto units = magnitude < (121u << 23) ? static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p29f)
                                              : magnitude - (120u << 23);
  const uint32_t code = (units + (random << 4)) >> 20;
  return static_cast<uint8_t>(((word >> 24) & 0x80u) | (code < 0x7eu ? code : 0x7eu));
}

// Returns the bits of one of the two bfloat16 numbers next to `value`, with the probabilities of random_e4m3(). NaN
// stays NaN.
constexpr uint16_t random_bfloat16(float value, uint32_t random) {
  const auto word = std::bit_cast<uint32_t>(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((word + random) >> 16);
}

constexpr float bfloat16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Returns 32 m / sqrt(v), the number whose code is stored, with root = sqrt(v).
template <typename Math>
constexpr float moment_ratio(float m, float root) {
  return root == 0 ? 0.0f : Math::divide(Math::multiply(m, kMomentCodeScale), root);
}
// Returns the m of a code.
template <typename Math>
constexpr float moment_of(uint8_t code, float root) {
  return Math::multiply(e4m3_value(code), Math::multiply(root, 1 / kMomentCodeScale));
}

// Updates one parameter by its clipped gradient g, with 32 random bits. The update of w uses the new moments before
// they are rounded.
template <typename Math>
constexpr void adamw_with_codes(const AdamwOptions& o, const AdamwScales& scales, float g, uint32_t random, float& w,
                                uint8_t& exp_avg, uint16_t& exp_avg_sq) {
  const float old_v = bfloat16_value(exp_avg_sq);
  const float old_m = moment_of<Math>(exp_avg, Math::sqrt(old_v));
  const float m = Math::add(Math::multiply(o.beta1, old_m), Math::multiply(Math::subtract(1.0f, o.beta1), g));
  const float v =
      Math::add(Math::multiply(o.beta2, old_v), Math::multiply(Math::multiply(Math::subtract(1.0f, o.beta2), g), g));
  exp_avg_sq = random_bfloat16(v, random & 0xffffu);
  exp_avg = random_e4m3(moment_ratio<Math>(m, Math::sqrt(bfloat16_value(exp_avg_sq))), random >> 16);
  const float update =
      Math::divide(Math::multiply(m, scales.m), Math::add(Math::sqrt(Math::multiply(v, scales.v)), o.eps));
  w = Math::subtract(w, Math::multiply(o.lr, Math::add(update, Math::multiply(o.weight_decay, w))));
}

// Returns the 32 random bits of element `index` in a step.
constexpr uint32_t moment_bits(uint64_t random_key, uint64_t index) {
  return static_cast<uint32_t>(mix_bits(random_key ^ index) >> 32);
}

namespace cpu {
// The CPU reference of adamw with moments of this format.
void adamw_float8(const Adamw& args);
}  // namespace cpu

// Convert m [n] float32 to its codes [n] float8_e4m3, rounded to nearest, and back, in host memory. v [n] is float32
// and is rounded to bfloat16 first. The result of decode_first_moment may be bfloat16.
void encode_first_moment(const Tensor& codes, const Tensor& exp_avg, const Tensor& exp_avg_sq);
void decode_first_moment(const Tensor& exp_avg, const Tensor& codes, const Tensor& exp_avg_sq);

}  // namespace octavo
