// out[i] = the sum over t of terms[t][i], or += it, in float32 and in the order of t: a gradient that micro-batches or
// ranks have parts of. A bfloat16 sum is rounded once. Starting at any element. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

struct SumTerms {
  Tensor out;    // [n] float32, or bfloat16 where the terms are
  Tensor terms;  // [t * n], one term behind the other; float32 or bfloat16
  bool accumulate = false;
};
void sum_terms(const SumTerms& args, Stream& stream);

}  // namespace octavo
