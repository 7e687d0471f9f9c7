// Sums the terms that micro-batches or ranks contribute to a gradient: out[i] = or += the sum over t of terms[t][i], in
// float32 and in the order of t. A bfloat16 sum is rounded once. Tensors may start at any element. Queued on `stream`;
// deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct SumTerms {
  Tensor out;  // [n] float32, or bfloat16 if the terms are bfloat16.
  // [t * n], one term after the other; float32 or bfloat16.
  Tensor terms;
  bool accumulate = false;  // Whether the sum is added to `out` instead of assigned.
};
void sum_terms(const SumTerms& args, Stream& stream);

}  // namespace octavo
