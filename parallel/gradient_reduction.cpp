#include "parallel/gradient_reduction.h"

#include <algorithm>

#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

// Returns the number of elements of this rank's slice that GradientTerms sums at a time. An element has one term per
// rank, which is the gradient that the rank computed for the element. The terms of all elements of one turn are in
// memory together.
int64_t terms_at_once(const ReducedUnit& unit) {
  constexpr int64_t kTermsBytes = int64_t{1} << 28;  // Limit of the memory for terms.
  constexpr int64_t kMultiple = 1 << 10;  // The result is a multiple of this, so that every rank's terms are aligned.
  const int64_t fitting = kTermsBytes / dtype_bytes(DType::kBFloat16) / unit.ranks->size();
  return std::min(unit.shard.numel(), std::max(fitting / kMultiple, int64_t{1}) * kMultiple);
}

class ScatteredGradient : public GradientReduction {
 public:
  ScatteredGradient(const ReducedUnit& unit, const Tensor& arrived)
      : unit_(unit), arrived_(arrived.raw(), unit.gradient.dtype(), {unit.shard.numel()}) {}

  void run(const MicroBatchPlace& at, Stream& stream) override {
    const bool direct = unit_.keeps || (at.first && unit_.gradient.dtype() == DType::kFloat32);
    unit_.ranks->reduce_scatter_sum(direct ? unit_.shard : arrived_, unit_.gradient, stream, unit_.name);
    if (!direct) sum_terms({.out = unit_.shard, .terms = arrived_, .accumulate = !at.first}, stream);
  }

 private:
  ReducedUnit unit_;
  Tensor arrived_;
};

class GradientTerms : public GradientReduction {
 public:
  GradientTerms(const ReducedUnit& unit, const Tensor& arrived) : unit_(unit), arrived_(arrived) {}

  void run(const MicroBatchPlace& at, Stream& stream) override {
    const int64_t elements = unit_.shard.numel();
    const int64_t step = terms_at_once(unit_);
    for (int64_t begin = 0; begin < elements; begin += step) {
      const int64_t end = std::min(begin + step, elements);
      const Tensor terms(arrived_.raw(), unit_.gradient.dtype(), {(end - begin) * unit_.ranks->size()});
      unit_.ranks->all_to_all(terms, unit_.gradient, begin, stream, unit_.name);
      sum_terms({.out = unit_.shard.rows(begin, end), .terms = terms, .accumulate = !at.first}, stream);
    }
  }

 private:
  ReducedUnit unit_;
  Tensor arrived_;
};

}  // namespace

int64_t arrived_bytes(const ReducedUnit& unit) {
  if (unit.keeps) return 0;
  const int64_t elements = unit.as_terms ? terms_at_once(unit) * unit.ranks->size() : unit.shard.numel();
  return elements * dtype_bytes(unit.gradient.dtype());
}

std::unique_ptr<GradientReduction> make_reduction(const ReducedUnit& unit, const Tensor& arrived) {
  if (unit.as_terms) return std::make_unique<GradientTerms>(unit, arrived);
  return std::make_unique<ScatteredGradient>(unit, arrived);
}

}  // namespace octavo
