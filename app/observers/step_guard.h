// Judges steps that went wrong: a loss or gradient norm that is not finite (the device has skipped the update by
// itself, kernels/optimizer/skip_update.h), and a loss that jumps (app/observers/spikes.h). Gradient norms that jump
// and steps that take unusually long are pointed out alone.
//
// Judged when a step's result reaches the host, one step late. All ranks see the same skips. Spikes are told from
// losses whose last bits may differ between ranks, so only one rank's verdict on them is acted upon.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "app/config/config.h"
#include "app/log/step.h"
#include "app/observers/spikes.h"

namespace octavo {

class StepGuard {
 public:
  // `logging_every` is the number of steps in a logging interval.
  StepGuard(const TrainingConfig& config, int64_t logging_every);

  // Returns TrainingStep::loss_limit of a step that is about to be queued.
  float loss_limit(int64_t step) const;
  // Judges the result of a step. Called once per step, in order.
  Judgement judge(const Step& step);

  int64_t skipped() const { return skipped_; }            // of the whole run
  int64_t skipped_in_a_row() const { return in_a_row_; }  // up to the last one judged
  bool has_given_up() const { return in_a_row_ > config_.max_skipped_steps; }

  // The state for checkpoints. The times of steps are not part of it, because another machine may resume the run.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  TrainingConfig config_;
  int64_t logging_every_;
  int64_t interval_warned_of_ = -1;  // last logging interval in which a slow step was warned of
  Spikes losses_;
  Spikes grad_norms_;
  Spikes times_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo
