// Element types, and bfloat16 on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/float8.h"

namespace octavo {

enum class DType : uint8_t { kFloat32, kBFloat16, kInt32, kUInt8, kFloat8E4M3, kFloat8E5M2 };

struct DTypeTraits {
  DType dtype;
  const char* name;
  int64_t bytes;  // Size of an element.
};

inline constexpr DTypeTraits kDTypes[] = {
    {DType::kFloat32, "float32", 4}, {DType::kBFloat16, "bfloat16", 2},      {DType::kInt32, "int32", 4},
    {DType::kUInt8, "uint8", 1},     {DType::kFloat8E4M3, "float8_e4m3", 1}, {DType::kFloat8E5M2, "float8_e5m2", 1},
};

constexpr int64_t dtype_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }
constexpr const char* dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

// bfloat16 on the host: the upper half of a float32. Conversion from float rounds to nearest even. NaN stays NaN
// (quiet), and values beyond the largest finite bfloat16 become infinity, as on the GPU.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
    bits = static_cast<uint16_t>(is_nan ? ((word >> 16) | 0x40u) : (rounded >> 16));
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kFloat32> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBFloat16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kInt32> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::kUInt8> {};
template <>
struct DTypeOf<Float8E4M3> : std::integral_constant<DType, DType::kFloat8E4M3> {};
template <>
struct DTypeOf<Float8E5M2> : std::integral_constant<DType, DType::kFloat8E5M2> {};

}  // namespace octavo
