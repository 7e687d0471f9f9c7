// What a run does about steps that went wrong: a loss or gradient norm that is not finite (the device has passed over
// the update by itself, kernels/optimizer/skip_update.h), and a loss that jumps (app/guard/spikes.h). Gradient norms
// that jump and steps that take unusually long are pointed out alone.
//
// Judged when a step's result reaches the host, one step late. All ranks see the same skips. Spikes are told from
// losses whose last bits may differ between ranks, so only one rank's verdict on them is acted upon.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/config/config.h"
#include "app/guard/spikes.h"

namespace octavo {

struct JudgedStep {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double step_ms = 0;     // its time
  int64_t sequences = 1;  // of all ranks
  bool skipped = false;
};

// What is wrong with a step, or stands out from the steps before it.
struct Judgement {
  bool skipped = false;                    // The step changed nothing.
  bool spike = false;                      // The step changed the state, and its loss is a spike.
  std::optional<double> loss_z = {};       // Z-score of the loss if it is a spike.
  std::optional<double> grad_norm_z = {};  // Z-score of the gradient norm if it is a spike.
  std::optional<double> slowdown = {};     // Time of a slow step divided by the mean time of the steps before it.
  bool warns_of_slowdown = false;          // The step is the first slow one of its logging interval.

  bool stands_out() const { return loss_z || grad_norm_z || slowdown; }
};

class StepGuard {
 public:
  // `logging_every` is the number of steps in a logging interval.
  StepGuard(const TrainingConfig& config, int64_t logging_every);

  // Of TrainingStep, for a step about to be queued.
  float loss_limit(int64_t step) const;
  // Called once per step, in order.
  Judgement judge(const JudgedStep& step);

  int64_t skipped() const { return skipped_; }            // of the whole run
  int64_t skipped_in_a_row() const { return in_a_row_; }  // up to the last one judged
  bool has_given_up() const { return in_a_row_ > config_.max_skipped_steps; }

  // For checkpoints. How long steps take begins anew, as another machine may.
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
