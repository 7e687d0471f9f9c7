// Single operations that IEEE 754 rounds correctly, for code whose results have equal bits on every device. Files that
// use this header are compiled without contraction (kernels/CMakeLists.txt). The GPU uses
// kernels/math/rounded_math.cuh.
#pragma once

#include <cmath>
#include <cstdint>

namespace octavo::cpu {

struct RoundedMath {
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float multiply(float a, float b) { return a * b; }
  static float add(float a, float b) { return a + b; }
  static float subtract(float a, float b) { return a - b; }
  static float divide(float a, float b) { return a / b; }
  static float sqrt(float x) { return std::sqrt(x); }
  static float from_integer(uint32_t x) { return static_cast<float>(x); }
};

}  // namespace octavo::cpu
