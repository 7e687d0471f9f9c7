#include "parallel/gradient_reduction.h"

#include <algorithm>

#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

// Returns the number of elements of this rank's slice that sum_rank_terms() sums at a time. An element has one term per
// rank, which is the gradient that the rank computed for the element. All these terms are in memory together.
int64_t terms_at_once(const ReducedUnit& unit) {
  constexpr int64_t kTermsBytes = int64_t{1} << 28;  // Limit of the memory for terms.
  constexpr int64_t kMultiple = 1 << 10;  // The result is a multiple of this, so that every rank's terms are aligned.
  const int64_t fitting = kTermsBytes / dtype_bytes(unit.gradient.dtype()) / unit.ranks->size();
  return std::min(unit.shard.numel(), std::max(fitting / kMultiple, int64_t{1}) * kMultiple);
}

// Sums the terms that all ranks have for this rank's slice.
void sum_rank_terms(const ReducedUnit& unit, const Tensor& arrived, bool first, Stream& stream) {
  const int64_t elements = unit.shard.numel();
  const int64_t step = terms_at_once(unit);
  for (int64_t begin = 0; begin < elements; begin += step) {
    const int64_t end = std::min(begin + step, elements);
    const Tensor terms(arrived.raw(), unit.gradient.dtype(), {(end - begin) * unit.ranks->size()});
    unit.ranks->all_to_all(terms, unit.gradient, begin, stream, unit.name);
    sum_terms({.out = unit.shard.rows(begin, end), .terms = terms, .accumulate = !first && !unit.keeps}, stream);
  }
}

}  // namespace

int64_t arrived_bytes(const ReducedUnit& unit) {
  if (unit.keeps && !unit.as_terms) return 0;
  const int64_t elements = unit.as_terms ? terms_at_once(unit) * unit.ranks->size() : unit.shard.numel();
  return elements * dtype_bytes(unit.gradient.dtype());
}

void reduce_gradient(const ReducedUnit& unit, const Tensor& arrived, bool first, Stream& stream) {
  if (unit.as_terms) return sum_rank_terms(unit, arrived, first, stream);
  const Tensor sum(arrived.raw(), unit.gradient.dtype(), {unit.shard.numel()});
  const bool direct = unit.keeps || (first && unit.gradient.dtype() == DType::kFloat32);
  unit.ranks->reduce_scatter_sum(direct ? unit.shard : sum, unit.gradient, stream, unit.name);
  if (!direct) sum_terms({.out = unit.shard, .terms = sum, .accumulate = !first}, stream);
}

}  // namespace octavo
