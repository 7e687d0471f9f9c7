#include "model/linear/fp8_stats_table.h"

#include "core/error.h"
#include "kernels/fp8/fp8_stats.h"

namespace octavo {

namespace {

constexpr int64_t kNumbersPerSlot = int64_t{Fp8Sum::kCount} + int64_t{Fp8Maximum::kCount};

int64_t slot_of(int64_t linear, AmaxTable::Kind kind) { return linear * AmaxTable::kKinds + kind; }

}  // namespace

Fp8StatsTable::Fp8StatsTable(int64_t linears, Arena& arena)
    : linears_(linears),
      values_(arena.allocate("fp8 statistics", DType::kFloat32, {linears * AmaxTable::kKinds * kNumbersPerSlot})) {}

Tensor Fp8StatsTable::sums() const { return values_.rows(0, linears_ * AmaxTable::kKinds * Fp8Sum::kCount); }

Tensor Fp8StatsTable::maxima() const {
  return values_.rows(linears_ * AmaxTable::kKinds * Fp8Sum::kCount, values_.numel());
}

void Fp8StatsTable::begin(Stream& stream) {
  stream.zero(values_);
  measuring_ = true;
  ++steps_begun_;
}

void Fp8StatsTable::add(const Cast& cast, Stream& stream) {
  if (!measuring_) return;
  const int64_t slot = slot_of(cast.linear, cast.kind);
  fp8_stats({.sums = sums().rows(slot * Fp8Sum::kCount, (slot + 1) * Fp8Sum::kCount),
             .maxima = maxima().rows(slot * Fp8Maximum::kCount, (slot + 1) * Fp8Maximum::kCount),
             .rows = cast.rows,
             .x = cast.x,
             .amax = cast.amax},
            stream);
}

void Fp8StatsTable::end(Communicator& communicator, Stream& stream) {
  CHECK(measuring_, "the end of FP8 statistics that were not begun");
  communicator.all_reduce_sum(sums(), stream);
  communicator.all_reduce_max(maxima(), stream);
  measuring_ = false;
}

Fp8TensorStats Fp8StatsTable::tensor(std::span<const float> host_values, int64_t linear, AmaxTable::Kind kind) const {
  CHECK(static_cast<int64_t>(host_values.size()) == values_.numel(), "{} FP8 statistics, expected {}",
        host_values.size(), values_.numel());
  const int64_t slot = slot_of(linear, kind);
  const float* sums = host_values.data() + slot * Fp8Sum::kCount;
  const float* maxima = host_values.data() + linears_ * AmaxTable::kKinds * Fp8Sum::kCount + slot * Fp8Maximum::kCount;
  return {.elements = static_cast<double>(sums[Fp8Sum::kElements]),
          .non_zero = static_cast<double>(sums[Fp8Sum::kNonZero]),
          .saturated = static_cast<double>(sums[Fp8Sum::kSaturated]),
          .flushed = static_cast<double>(sums[Fp8Sum::kFlushed]),
          .amax = static_cast<double>(maxima[Fp8Maximum::kAmax]),
          .smallest_scale = 1.0 / static_cast<double>(maxima[Fp8Maximum::kScaleInv]),
          .largest_scale = static_cast<double>(maxima[Fp8Maximum::kScale])};
}

}  // namespace octavo
