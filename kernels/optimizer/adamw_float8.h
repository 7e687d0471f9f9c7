// AdamW's moments in three bytes a parameter (optimizer.state_dtype: float8):
//
//   v   bfloat16
//   m   e4m3, as the code of 32 m / sqrt(v), with v as it is kept; 0 where v is 0
//
// The root of v scales m element by element, so that there are no blocks and no scales beside the codes: any stretch of
// the states stands for itself, on any mesh. What is coded is bounded (Cauchy and Schwarz on the two sums of
// gradients):
//
//   |m| / sqrt(v) <= (1 - beta1) / sqrt(1 - beta2) / sqrt(1 - beta1^2 / beta2)   where beta1^2 < beta2
//
// 1.17 for betas of 0.9 and 0.95, 7.3 for 0.9 and 0.999; codes reach 14. Both are rounded up or down at random, to
// their value in the mean: rounded to nearest, a moment would stay where it is as long as a step moves it by less than
// half the distance to the next code, which for m is the usual case. The random bits of an element are a function of a
// key, one a step, and its index in the whole model (kernels/math/random_numbers.h, kernels/math/matrix_range.h).
//
// The CPU and the GPU compile this header; `Math` names the operations one by one (kernels/math/rounded_math.h), so
// that both keep the same bits, of the weights as well.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/math/random_numbers.h"
#include "kernels/optimizer/adamw.h"

namespace octavo {

inline constexpr float kMomentCodeScale = 32.0f;
inline constexpr float kLargestMomentRatio = 448.0f / kMomentCodeScale;

// The bound above, infinity where there is none.
inline double moment_ratio_bound(double beta1, double beta2) {
  const double unbounded = std::numeric_limits<double>::infinity();
  return beta1 * beta1 < beta2 ? (1 - beta1) / std::sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2)) : unbounded;
}

// The value of an e4m3 code (core/float8.h).
constexpr float e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const float value = magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : magnitude < 8 ? subnormal : normal;
  return (code & 0x80u) != 0 ? -value : value;
}

// One of the two codes around `value`, the upper one with the probability of the distance to the lower one in 2^-16 of
// a code; `random` has 16 bits. As core/float8.h beyond the largest value, for infinity and for NaN.
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

// Likewise one of the two bfloat16 around `value`, its bits. NaN stays NaN.
constexpr uint16_t random_bfloat16(float value, uint32_t random) {
  const auto word = std::bit_cast<uint32_t>(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((word + random) >> 16);
}

constexpr float bfloat16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// 32 m / sqrt(v), what m is the code of, with root = sqrt(v).
template <typename Math>
constexpr float moment_ratio(float m, float root) {
  return root == 0 ? 0.0f : Math::divide(Math::multiply(m, kMomentCodeScale), root);
}
// The m of a code.
template <typename Math>
constexpr float moment_of(uint8_t code, float root) {
  return Math::multiply(e4m3_value(code), Math::multiply(root, 1 / kMomentCodeScale));
}

// One parameter's update by the clipped gradient g, with 32 random bits. The moments that it uses are not rounded yet.
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

// The 32 random bits of element `index` in a step.
constexpr uint32_t moment_bits(uint64_t random_key, uint64_t index) {
  return static_cast<uint32_t>(mix_bits(random_key ^ index) >> 32);
}

namespace cpu {
// kernels/optimizer/adamw.h with such moments, by the CPU.
void adamw_float8(const Adamw& args);
}  // namespace cpu

// Between m [n] float32 and its codes [n] float8_e4m3, to nearest, beside v [n] float32, which is rounded to bfloat16
// first; m may be bfloat16 where it is the result. In host memory.
void encode_first_moment(const Tensor& codes, const Tensor& exp_avg, const Tensor& exp_avg_sq);
void decode_first_moment(const Tensor& exp_avg, const Tensor& codes, const Tensor& exp_avg_sq);

}  // namespace octavo
