// MetricRow holds the metrics of one step (app/run/metric_table.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/run/fp8_report.h"
#include "app/run/metric_table.h"

namespace octavo {

// Returns kMetrics as a JSON array of {key, tag, title, unit}.
std::string metric_table_json();
inline constexpr const char* kMetricTableName = "metric_table.json";

// Values by dataset name.
using NumbersByName = std::vector<std::pair<std::string, double>>;

class MetricRow {
 public:
  MetricRow() = default;
  explicit MetricRow(int64_t step_number, int64_t steps_of_run = 0) : step(step_number), total_steps(steps_of_run) {}

  int64_t step = 0;                       // Number of the step, from 1.
  int64_t total_steps = 0;                // Number of steps of the run.
  bool in_bfloat16 = false;               // Whether the step used bfloat16 although the config selects FP8.
  std::vector<Fp8TensorReport> fp8 = {};  // FP8 statistics of the step. Empty unless the step collected them.

  // Sets a metric. An empty value removes it.
  void set(MetricKey metric, std::optional<double> value) { values_[metric.index] = value; }
  void set(MetricKey metric, NumbersByName values) { by_dataset_[metric.index] = std::move(values); }
  std::optional<double> get(MetricKey metric) const { return values_[metric.index]; }
  // Returns the value of a metric that is set.
  double at(MetricKey metric) const { return values_[metric.index].value(); }
  const NumbersByName& by_dataset(MetricKey metric) const { return by_dataset_[metric.index]; }

  // Calls visit(spec, value) for each metric that has a value, in the order of kMetrics.
  template <typename Visit>
  void visit_numbers(Visit visit) const {
    for (size_t i = 0; i < kNumMetrics; ++i) {
      if (values_[i]) visit(kMetrics[i], *values_[i]);
    }
  }
  // Calls visit(spec, values) for each metric that has values by dataset.
  template <typename Visit>
  void visit_datasets(Visit visit) const {
    for (size_t i = 0; i < kNumMetrics; ++i) {
      if (!by_dataset_[i].empty()) visit(kMetrics[i], by_dataset_[i]);
    }
  }

 private:
  friend class MetricInterval;

  std::array<std::optional<double>, kNumMetrics> values_;
  std::array<NumbersByName, kNumMetrics> by_dataset_;
};

// Combines the rows of consecutive steps by MetricSpec::over.
class MetricInterval {
 public:
  void add(const MetricRow& row);
  int64_t steps() const { return steps_; }
  // Replaces the means and maxima in `row`, the row of the last step, by those of all added rows.
  void combine_into(MetricRow& row) const;

 private:
  MetricRow combined_;  // Sums for means, and maxima.
  int64_t steps_ = 0;
};

}  // namespace octavo
