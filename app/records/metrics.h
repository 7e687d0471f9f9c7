// Formats a step for the console, metrics.jsonl, Prometheus and TensorBoard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/records/metric_row.h"
#include "app/records/tensorboard.h"

namespace octavo {

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

// Returns a step for TensorBoard: each metric under its tag (app/run/metric_table.h), metrics by dataset under
// TAG/NAME, and FP8 statistics under fp8/LAYER/LINEAR/TENSOR/KEY.
std::vector<Scalar> tensorboard_scalars(const MetricRow& row);

}  // namespace octavo
