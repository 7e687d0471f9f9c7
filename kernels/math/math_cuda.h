// CUDA implementations of the ops of kernels/math/ (kernels/cuda/dispatch.h). Each function has the contract of its op.
#pragma once

#include "kernels/math/bit_hash.h"
#include "kernels/math/cast.h"
#include "kernels/math/random_normal.h"
#include "kernels/math/reduce.h"
#include "kernels/math/sum_terms.h"

namespace octavo::cuda {

// Number of blocks of sum and sum_of_squares per multiprocessor. Each block writes one float64 to the workspace.
inline constexpr int kReduceBlocksPerMultiprocessor = 4;

void bit_hash(const BitHash& args, Stream& stream);
void cast(const Cast& args, Stream& stream);
void random_normal(const RandomNormal& args, Stream& stream);
void sum_of_squares(const SumOfSquares& args, Stream& stream);
void sum(const Sum& args, Stream& stream);
void sum_terms(const SumTerms& args, Stream& stream);

}  // namespace octavo::cuda
