// Step: all that is known of one step, from its batch to its line in the log.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/guard/step_guard.h"
#include "app/log/metric_row.h"
#include "data/loader.h"

namespace octavo {

struct Step {
  int64_t number = 0;  // From 1.

  // Known when the step is queued.
  const Batch* batch = nullptr;       // Valid until the step is queued.
  SampleRange samples = {};           // Samples of all ranks, skipped ones included.
  nlohmann::json loader_state = {};   // State of the loader after the batch.
  double data_ms = 0;                 // Time that the host waited for the batch.
  double data_lost_ms = 0;            // Part of data_ms in which the device was idle.
  std::vector<int64_t> targets = {};  // Number of targets that the loss counts, by dataset.

  // Known once its result is on the host.
  std::vector<double> loss_sums = {};  // Sum of the losses of the targets, by dataset.
  double grad_norm = 0;                // Before clipping.
  bool skipped = false;                // The step changed nothing.
  double step_ms = 0;                  // Time since the end of the step before, or since StepResults::start().
  double pause_ms = 0;  // Time from the end of the step before to StepResults::start(), if it was called.

  Judgement judgement = {};
  MetricRow row = {};  // What is reported of the step.

  int64_t num_targets() const;    // Of all datasets.
  double mean(double sum) const;  // The mean over the targets of what sums to `sum`.
  double loss() const;            // The mean loss.
};

// Warns of what is wrong with a step, or stands out from the steps before it.
void warn_of(const Step& step);

}  // namespace octavo
