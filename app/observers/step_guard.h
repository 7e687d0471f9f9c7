// Judges the results of steps. A step with a loss or gradient norm that is not finite, or with a loss spike
// (app/observers/spikes.h), went wrong; the device has already skipped the update of the former by itself
// (kernels/optimizer/skip_update.h). Spikes of the gradient norm and unusually slow steps are only reported.
//
// A step is judged when its result reaches the host, one step late. All ranks see the same skipped steps. Spikes are
// detected from losses whose last bits may differ between ranks, so the run acts only on the judgement of rank 0.
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

  // Returns TrainingStep::loss_limit for a step that is about to be queued.
  float loss_limit(int64_t step) const;
  // Judges the result of a step. Called once per step, in order.
  Judgement judge(const Step& step);

  int64_t skipped() const { return skipped_; }  // Returns the number of skipped steps in the whole run.
  // Returns the number of skipped steps in a row, up to the last judged step.
  int64_t skipped_in_a_row() const { return in_a_row_; }
  bool has_given_up() const { return in_a_row_ > config_.max_skipped_steps; }

  // Convert the state to and from JSON for checkpoints. The durations of steps are omitted, because another machine may
  // resume the run.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  TrainingConfig config_;
  int64_t logging_every_;
  int64_t last_warned_interval_ = -1;  // Last logging interval in which a slow step was warned about.
  Spikes losses_;
  Spikes grad_norms_;
  Spikes times_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo
