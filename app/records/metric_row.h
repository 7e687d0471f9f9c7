// MetricRow holds the metrics of one step (app/run/metric_table.h), and is formatted for the console, metrics.jsonl,
// Prometheus and TensorBoard.
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

// Returns the line of a step on the console: "step 100/2000  loss 3.2145  grad_norm 0.812  lr 3.00e-04  wps 16,432  mfu
// 96.2%  mem 71.3 GiB  step 997 ms  eta 31m". If they exist, "  validation_loss 3.1234" and marks of unusual values
// such as "  [slow 3.1x]" follow. The mfu is omitted if it is unknown.
std::string console_line(const MetricRow& row, double eta_seconds);

// Returns the line of a step in metrics.jsonl, without the newline. It has the keys of all metrics that are set. JSON
// has no NaN or infinity, so such values are null, and an object `nonfinite` names them:
// {"step":7,"loss":null,...,"nonfinite":{"loss":"nan"}}. Metrics by dataset are objects with the datasets' names as
// keys.
std::string metrics_json(const MetricRow& row);

// Returns a step in Prometheus' text format, for the textfile collector of its node exporter. Each metric becomes
// octavo_KEY{run="RUN"}, with a label for the dataset or the FP8 tensor if there is one. octavo_time_seconds is
// `time_s`, the time of logging, and shows whether the run has stopped.
std::string prometheus_text(const MetricRow& row, const std::string& run, int64_t time_s);

struct Scalar {
  std::string tag;
  double value;
};
// Returns a step for TensorBoard: each metric under its tag (app/run/metric_table.h), metrics by dataset under
// TAG/NAME, and FP8 statistics under fp8/LAYER/LINEAR/TENSOR/KEY.
std::vector<Scalar> tensorboard_scalars(const MetricRow& row);

}  // namespace octavo
