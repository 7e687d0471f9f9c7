// What the ops share that can write their result as FP8 operands (Fp8Cast).
#pragma once

#include "kernels/fp8/fp8.h"

namespace octavo {

// What is cast: activations become e4m3, gradients either format.
enum class CastOf { kActivation, kGradient };

// Whether a cast, where defined, suits an op's result [m, n]. GPUs cast bfloat16 alone, what they compute in.
void check_cast(const Fp8Cast& cast, CastOf what, const char* op, const Tensor& result, const Stream& stream);

// Bytes that the result is written in: the operands', or its own.
double result_bytes(const Fp8Cast& cast, const Tensor& result);

namespace cpu {

// Casts the result into what is defined of the operands. Ops on the CPU make their result first, in the compute dtype.
void cast_result(const Fp8Cast& cast, const Tensor& result);

}  // namespace cpu
}  // namespace octavo
