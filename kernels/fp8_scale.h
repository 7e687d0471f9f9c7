// The arithmetic of scales that kernels/fp8.cpp and the CPU references beside it share; kernels/fp8.h has the formulas.
#pragma once

#include "kernels/fp8.h"

namespace octavo::cpu {

// fp8_max / max(amax, 1e-12); NaN passes through.
float scale_of(float amax, float fp8_max);

// Index in scale_inv of the scale of element (row, i) of an operand [rows, k].
int64_t scale_index(Scaling scaling, int64_t rows, int64_t k, int64_t row, int64_t i);

}  // namespace octavo::cpu
