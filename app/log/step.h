// Step: all that is known of one step, from its batch to its line in the log.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "app/records/metric_row.h"
#include "data/loader.h"

namespace octavo {

// The judgement of a step that went wrong, or that stands out from the steps before it (app/observers/step_guard.h).
struct Judgement {
  bool skipped = false;                    // The step changed nothing.
  bool spike = false;                      // The step changed the state, and its loss is a spike.
  std::optional<double> loss_z = {};       // Z-score of the loss if it is a spike.
  std::optional<double> grad_norm_z = {};  // Z-score of the gradient norm if it is a spike.
  std::optional<double> slowdown = {};     // Time of a slow step divided by the mean time of the steps before it.
  bool warns_of_slowdown = false;          // The step is the first slow one of its logging interval.

  bool stands_out() const { return loss_z || grad_norm_z || slowdown; }
};

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
  MetricRow row = {};  // The values that are reported of the step.

  int64_t num_targets() const;    // The number of targets of all datasets.
  double mean(double sum) const;  // The mean over the targets of what sums to `sum`.
  double loss() const;            // The mean loss.
};

// Warns of what is wrong with a step, or stands out from the steps before it.
void warn_of(const Step& step);

}  // namespace octavo
