// Shared host code of the FP8 ops: the scale of an amax as the CPU reference computes it, and dispatch on formats.
#pragma once

#include "core/error.h"
#include "kernels/fp8/fp8.h"

namespace octavo::cpu {

inline bool is_float8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

// Returns fp8_max / max(amax, 1e-12), or NaN if amax is NaN.
inline float scale_of(float amax, float fp8_max) { return fp8_max / (amax < 1e-12f ? 1e-12f : amax); }

// Calls f.operator()<Format>() with Format = Float8E4M3 or Float8E5M2.
template <typename F>
void with_float8_dtype(DType dtype, F&& f) {
  CHECK(is_float8(dtype), "expected a float8 tensor, got {}", dtype_name(dtype));
  if (dtype == DType::kFloat8E4M3) return f.template operator()<Float8E4M3>();
  return f.template operator()<Float8E5M2>();
}

}  // namespace octavo::cpu
