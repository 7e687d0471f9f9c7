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
  double sample_ms = 0;  // its time, over its sequences
  bool skipped = false;
};

// What of a step stands out from those before it.
struct StepMarks {
  std::optional<double> loss_z;       // z-scores of spikes
  std::optional<double> grad_norm_z;  //
  std::optional<double> slowdown;     // its time over the mean of those before it, where that is a spike

  bool any() const { return loss_z || grad_norm_z || slowdown; }
};

class StepGuard {
 public:
  explicit StepGuard(const TrainingConfig& config);

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
  Spikes losses_;
  Spikes grad_norms_;
  Spikes times_;
  StepMarks marks_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo
