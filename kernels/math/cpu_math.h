// Helpers of the CPU reference ops: dispatch on the compute dtype, amaxes, and an exp that vectorizes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/error.h"
#include "core/tensor.h"

namespace octavo::cpu {

// Calls f.operator()<T>() with T = float or BFloat16, according to `dtype`.
template <typename F>
void with_compute_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    default:
      refuse_dtype(dtype);
  }
}

// Sets out[i] = x[i], rounded to the type of `out`, for n elements.
template <typename Out, typename In>
void convert(Out* out, const In* x, int64_t n) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = Out(static_cast<float>(x[i]));
}

// Returns the bits of |x|. As integers, these bits order all floats by |x|, with infinity and NaN at the top.
inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

inline void update_amax(float& amax, float x) { amax = std::bit_cast<float>(std::max(magnitude(amax), magnitude(x))); }

template <typename T>
float tensor_amax(const Tensor& x) {
  const T* values = x.data<T>();
  const int64_t n = x.numel();
  uint32_t largest = 0;
#pragma omp parallel for reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(static_cast<float>(values[i])));
  return std::bit_cast<float>(largest);
}

// Sets amax = max(amax, max |x|) if the optional amax [1] is defined.
template <typename T>
void update_amax(const Tensor& amax, const Tensor& x) {
  if (amax.defined()) update_amax(amax.data<float>()[0], tensor_amax<T>(x));
}

// Bounds of the argument of exp_fast, -87.3 and 88.3. They are defined in another file to hide their values from the
// compiler. Otherwise the compiler computes the constant result of each bound for every element, and most of these
// results are subnormal, which costs a hundred cycles each.
extern const float kExpLowest;
extern const float kExpHighest;

// Returns e^x within 2 units in the last place on [kExpLowest, kExpHighest], and the value at the nearer bound outside.
// NaN stays NaN. Has no branches or calls, so that loops over it vectorize, unlike libm's expf.
inline float exp_fast(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // ln 2 = high + low; n * high is exact for |n| < 2^15
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23. Adding it rounds to an integer in the low bits.
  x = x < kExpLowest ? kExpLowest : x;
  x = x > kExpHighest ? kExpHighest : x;
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Minimax polynomial of (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] (Cephes).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) << 23) + 0x3f800000);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

}  // namespace octavo::cpu
