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

enum class StepVerdict : uint8_t {
  kGood,
  kSkipped,  // the update was passed over
  kSpike,    // it was not, and the loss is a spike
};

struct JudgedStep {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double step_ms = 0;     // its time
  int64_t sequences = 1;  // of all ranks
  bool skipped = false;
};

// What of a step stands out from those before it.
struct StepMarks {
  std::optional<double> loss_z;       // z-scores of spikes
  std::optional<double> grad_norm_z;  //
  std::optional<double> slowdown;     // of a slow step: its time over the mean of those before it
  bool warns_of_slowdown = false;     // whether the step is the first slow one of its logging interval

  bool any() const { return loss_z || grad_norm_z || slowdown; }
};

class StepGuard {
 public:
  // `logging_every` is the number of steps in a logging interval.
  StepGuard(const TrainingConfig& config, int64_t logging_every);

  // Of TrainingStep, for a step about to be queued.
  float loss_limit(int64_t step) const;
  // Of each step once, in order.
  StepVerdict judge(const JudgedStep& step);
  // Of the last step judged.
  const StepMarks& marks() const { return marks_; }

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
  StepMarks marks_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo
