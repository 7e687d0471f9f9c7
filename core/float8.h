// The two 8-bit floating-point formats of FP8 training (Micikevicius et al., arXiv 2209.05433):
//
//   e4m3: 4 exponent bits (bias 7), 3 mantissa bits, largest 448, smallest 2^-9; one NaN pattern (0x7f), no infinity
//   e5m2: 5 exponent bits (bias 15), 2 mantissa bits, largest 57344, smallest 2^-16; here without infinity
//
// Conversion from float rounds to nearest even and saturates to the largest finite value. NaN and infinity become NaN
// (0x7f), so that a broken value shows in the loss and never becomes a silent large number or zero. The CUDA kernels
// convert to the same bytes with the hardware's saturating instruction and this rule for infinity.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace octavo {

// Returns the values of all 256 bytes of a format with this many mantissa bits. Magnitudes above `max_bits` are NaN.
constexpr std::array<float, 256> float8_values(int mantissa_bits, int bias, uint32_t max_bits) {
  std::array<float, 256> values{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t magnitude = byte & 0x7fu;
    // Difference between the exponent bias of float and that of the format.
    const auto offset = static_cast<uint32_t>(127 - bias);
    uint32_t word = (magnitude << (23 - mantissa_bits)) + (offset << 23);
    if (magnitude >> mantissa_bits == 0) {  // A subnormal value is its magnitude times the smallest value.
      const uint32_t unit = (offset + 1 - static_cast<uint32_t>(mantissa_bits)) << 23;
      word = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * std::bit_cast<float>(unit));
    }
    if (magnitude > max_bits) word = 0x7fc00000u;
    values[byte] = std::bit_cast<float>((byte & 0x80u) << 24 | word);
  }
  return values;
}

template <int kExponentBits, int kMantissaBits, int kMaxBits>
struct Float8 {
  uint8_t bits = 0;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint8_t kNaN = 0x7f;
  static constexpr std::array<float, 256> kValues = float8_values(kMantissaBits, kBias, kMaxBits);

  Float8() = default;
  explicit Float8(float value) : bits(encode(value)) {}
  explicit operator float() const { return decode(bits); }

  // Returns the largest finite value.
  static float max() { return decode(static_cast<uint8_t>(kMaxBits)); }

  static float decode(uint8_t byte) { return kValues[byte]; }

 private:
  static uint8_t encode(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude_word = word & 0x7fffffffu;
    const auto sign = static_cast<uint8_t>((word >> 24) & 0x80u);
    if (magnitude_word >= 0x7f800000u) return kNaN;  // NaN or infinity
    constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
    uint32_t rounded;
    if (magnitude_word < kMinNormal) {
      // For subnormal values, adding 2^23 in units of the smallest value rounds to an integer, to nearest even.
      constexpr int kUnitExponent = kBias - 1 + kMantissaBits;
      const float units = std::bit_cast<float>(magnitude_word) * std::bit_cast<float>((127u + kUnitExponent) << 23);
      rounded = std::bit_cast<uint32_t>(units + 8388608.0f) - 0x4b000000u;
    } else {
      constexpr int kDropped = 23 - kMantissaBits;
      const uint32_t half_minus_one = (1u << (kDropped - 1)) - 1;
      const uint32_t nearest = magnitude_word + half_minus_one + ((magnitude_word >> kDropped) & 1u);
      rounded = (nearest >> kDropped) - (static_cast<uint32_t>(127 - kBias) << kMantissaBits);
    }
    if (rounded > static_cast<uint32_t>(kMaxBits)) rounded = kMaxBits;
    return static_cast<uint8_t>(sign | rounded);
  }
};

using Float8E4M3 = Float8<4, 3, 0x7e>;
using Float8E5M2 = Float8<5, 2, 0x7b>;

}  // namespace octavo
