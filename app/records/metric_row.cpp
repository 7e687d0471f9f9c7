#include "app/records/metric_row.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace octavo {

std::string metric_table_json() {
  nlohmann::ordered_json table;
  for (const MetricSpec& spec : kMetrics) {
    table.push_back({{"key", spec.key}, {"tag", spec.tag}, {"title", spec.title}, {"unit", spec.unit}});
  }
  return table.dump(1) + "\n";
}

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
