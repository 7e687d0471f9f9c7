// MetricRow: what is reported of one step, as values by metric (app/run/metric_table.h).
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

// Numbers of datasets by their names.
using NumbersByName = std::vector<std::pair<std::string, double>>;

class MetricRow {
 public:
  MetricRow() = default;
  explicit MetricRow(int64_t step_number, int64_t steps_of_run = 0) : step(step_number), total_steps(steps_of_run) {}

  int64_t step = 0;                       // From 1.
  int64_t total_steps = 0;                // Number of steps of the run.
  std::vector<Fp8TensorReport> fp8 = {};  // Empty unless the step took statistics.

  // An empty value leaves the metric out.
  void set(MetricKey metric, std::optional<double> value) { values_[metric.index] = value; }
  void set(MetricKey metric, NumbersByName values) { by_dataset_[metric.index] = std::move(values); }
  std::optional<double> get(MetricKey metric) const { return values_[metric.index]; }
  // Returns the value of a metric that is there.
  double at(MetricKey metric) const { return values_[metric.index].value(); }
  const NumbersByName& by_dataset(MetricKey metric) const { return by_dataset_[metric.index]; }

  // visit(spec, value) with each number that is there, in the order of kMetrics.
  template <typename Visit>
  void visit_numbers(Visit visit) const {
    for (size_t i = 0; i < kNumMetrics; ++i) {
      if (values_[i]) visit(kMetrics[i], *values_[i]);
    }
  }
  // visit(spec, numbers) with the numbers by dataset that are there.
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

// Combines the rows of consecutive steps as MetricSpec::over says.
class MetricInterval {
 public:
  void add(const MetricRow& row);
  int64_t steps() const { return steps_; }
  // Replaces the means and maxima in `row`, which is that of the last step, by those of the interval.
  void combine_into(MetricRow& row) const;

 private:
  MetricRow combined_;  // Sums for means.
  int64_t steps_ = 0;
};

}  // namespace octavo
