// GPU implementation of kernels/math/rounded_math.h with intrinsics that no compiler fuses.
#pragma once

#include <cstdint>

#ifdef __CUDACC__

namespace octavo::cuda {

struct RoundedMath {
  static __device__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float multiply(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
  static __device__ float subtract(float a, float b) { return __fsub_rn(a, b); }
  static __device__ float divide(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ float sqrt(float x) { return __fsqrt_rn(x); }
  static __device__ float from_integer(uint32_t x) { return __uint2float_rn(x); }
};

}  // namespace octavo::cuda

#endif  // __CUDACC__
