// Step holds everything that is known about one training step, from its batch to its line in the log.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "app/records/metric_row.h"
#include "app/run/training_state.h"
#include "data/loader.h"

namespace octavo {

// The decision of StepGuard about a step: what is unusual compared with the steps before (app/observers/step_guard.h).
struct Judgement {
  bool spike = false;                      // Whether the step changed the state and its loss is a spike.
  std::optional<double> loss_z = {};       // Z-score of the loss if it is a spike.
  std::optional<double> grad_norm_z = {};  // Z-score of the gradient norm if it is a spike.
  // Time of the step divided by the mean time of the steps before, if the step is slow.
  std::optional<double> slowdown = {};
  bool warns_about_slowdown = false;  // Whether the step is the first slow one of its logging interval.

  bool stands_out() const { return loss_z || grad_norm_z || slowdown; }
};

struct Step {
  int64_t number = 0;  // Number of the step, from 1.

  // ---- Members that are known when the step is queued
  const Batch* batch = nullptr;       // Batch of the step. Valid until the step is queued.
  SampleRange samples = {};           // Global samples of all ranks, including samples that are skipped.
  nlohmann::json loader_state = {};   // State of the loader after the batch.
  double data_ms = 0;                 // Time that the host waited for the batch.
  double data_lost_ms = 0;            // Part of data_ms during which the device was idle.
  std::vector<int64_t> targets = {};  // Number of targets that the loss counts in each dataset.

  // ---- Members that are known once the step's result is on the host
  std::vector<double> loss_sums = {};  // Sum of the losses over the targets of each dataset.
  double grad_norm = 0;                // Gradient norm before clipping.
  bool skipped = false;                // Whether the step was skipped and changed nothing.
  double step_ms = 0;                  // Time since the end of the previous step, or since StepResults::start().
  double pause_ms = 0;  // Time from the end of the previous step to StepResults::start(), if it was called.

  Judgement judgement = {};
  MetricRow row = {};  // Metrics of the step that are reported.

  // Returns the number of targets in all datasets.
  int64_t num_targets() const { return std::accumulate(targets.begin(), targets.end(), int64_t{0}); }
  // Returns `sum` divided by the number of targets.
  double mean(double sum) const { return sum / static_cast<double>(std::max<int64_t>(num_targets(), 1)); }
  // Returns the mean loss over all targets.
  double loss() const { return mean(std::accumulate(loss_sums.begin(), loss_sums.end(), 0.0)); }
};

// Logs warnings about what went wrong in a step or is unusual compared with the steps before.
void log_step_warnings(const Step& step);

// StepResults holds the steps in flight. Loss, gradient norm and duration of a step are read one step late, so that the
// host never waits for the GPU inside a step: push() queues the copy of a step's results, and pop() waits for the
// results of the oldest step.
class StepResults {
 public:
  // Requires: `state`, on whose stream the steps run, outlives the object.
  explicit StepResults(TrainingState& state);

  // Starts the clock of the next step now instead of at the end of the previous step. Called before the first step, and
  // after work between steps that is not part of a step, such as a validation or a save.
  void start() { mark(); }

  // Queues the copy of the step's results after its work.
  // Requires: pending() < 2.
  void push(Step step);
  // Waits for the oldest step and returns it with its results.
  // Requires: pending() > 0.
  Step pop();
  int64_t pending() const { return pushed_ - popped_; }
  // Returns whether the device has completed everything that was pushed, and therefore waits for the host.
  bool is_idle() const { return marks_[last_mark_].is_reached(); }

 private:
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kMarks = 8;  // More than the number of steps in flight plus the starts between them.

  struct Slot {
    Step step;
    size_t before = 0;  // Index of the mark at the end of the previous step, or at the first start.
    size_t begin = 0;
    size_t end = 0;
  };
  int64_t slot_floats() const { return state_.loss.numel() + 2 + (state_.z_loss.defined() ? 1 : 0); }
  size_t mark();

  TrainingState& state_;
  Stream& stream_;
  Buffer host_;  // [kSlots, slot_floats()] float32: losses by dataset, gradient norm, skip and z-loss of each step.
  std::vector<Event> marks_;
  size_t last_mark_ = 0;
  size_t last_end_ = 0;
  bool has_end_ = false;
  std::array<Slot, kSlots> slots_;
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
