// Shared code of the ops that can write their result as FP8 operands (Fp8Cast).
#pragma once

#include "kernels/fp8/fp8.h"

namespace octavo {

// The kind of a result. Activations are cast to e4m3, gradients to either format.
enum class CastOf { kActivation, kGradient };

// Throws if a defined cast does not suit the result [m, n] of an op. On GPUs only bfloat16 results can be cast.
void check_cast(const Fp8Cast& cast, CastOf what, const char* op, const Tensor& result, const Stream& stream);

// Returns the bytes that the op writes: those of the operands of a defined cast, or else those of the result.
double result_bytes(const Fp8Cast& cast, const Tensor& result);

namespace cpu {

// Casts the result into the defined operands. Ops on the CPU compute their result in the compute dtype first.
void cast_result(const Fp8Cast& cast, const Tensor& result);

}  // namespace cpu
}  // namespace octavo
