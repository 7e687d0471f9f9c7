#include "app/records/metric_row.h"

#include <algorithm>

namespace octavo {

void MetricInterval::add(const MetricRow& row) {
  ++steps_;
  for (size_t i = 0; i < kNumMetrics; ++i) {
    const std::optional<double>& value = row.values_[i];
    std::optional<double>& combined = combined_.values_[i];
    if (!value) continue;
    if (kMetrics[i].over == Over::kMean) combined = combined.value_or(0) + *value;
    if (kMetrics[i].over == Over::kMax) combined = std::max(combined.value_or(*value), *value);
  }
}

void MetricInterval::combine_into(MetricRow& row) const {
  for (size_t i = 0; i < kNumMetrics; ++i) {
    const std::optional<double>& combined = combined_.values_[i];
    if (!combined) continue;
    row.values_[i] = kMetrics[i].over == Over::kMean ? *combined / static_cast<double>(steps_) : *combined;
  }
}

}  // namespace octavo
