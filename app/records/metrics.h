// The formats in which a step is reported: console line, metrics.jsonl, Prometheus, TensorBoard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/records/metric_row.h"
#include "app/records/tensorboard.h"

namespace octavo {

// "step 100/2000  loss 3.2145  grad_norm 0.812  lr 3.00e-04  wps 16,432  mfu 96.2%  mem 71.3 GiB  step 997 ms  eta
// 31m", and "  validation_loss 3.1234" where there is one and "  [slow 3.1x]" of what stands out; without mfu where
// there is none.
std::string console_line(const MetricRow& row, double eta_seconds);

// The step as one line of JSON without the newline, with the keys of what there is. JSON has no NaN or infinity: such a
// value is written as null, and an object `nonfinite` beside it says what each of them was, as in
// {"step":7,"loss":null,...,"nonfinite":{"loss":"nan"}}. Numbers by dataset are objects with the datasets' names as
// keys.
std::string metrics_json(const MetricRow& row);

// The step in Prometheus' text format, for the textfile collector of its node exporter: octavo_loss{run="RUN"} and so
// on for each number; by dataset and FP8 tensor with a label of its name; octavo_time_seconds, when it was logged, by
// which a run that stands still is seen.
std::string prometheus_text(const MetricRow& row, const std::string& run, int64_t time_s);

// The step as TensorBoard has it: each number under its tag (app/run/metric_table.h), a dataset's as in
// validation/NAME, a tensor's FP8 statistics under fp8/LAYER/LINEAR/TENSOR/KEY.
std::vector<Scalar> tensorboard_scalars(const MetricRow& row);

}  // namespace octavo
