// What a run does about steps that went wrong: a loss or gradient norm that is not finite (the device has passed over
// the update by itself, kernels/skip_update.h), and a loss that jumps (app/guard/loss_spikes.h).
//
// Judged when a step's result reaches the host, one step late. All ranks see the same skips. Spikes are told from
// losses whose last bits may differ between ranks, so only one rank's verdict on them is acted upon.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "app/config/config.h"
#include "app/guard/loss_spikes.h"

namespace octavo {

enum class StepVerdict : uint8_t {
  kGood,
  kSkipped,  // the update was passed over
  kSpike,    // it was not, and the loss is a spike
};

class StepGuard {
 public:
  explicit StepGuard(const TrainingConfig& config)
      : config_(config), spikes_(config.loss_spike_window, config.loss_spike_z) {}

  // Of TrainingStep, for a step about to be queued.
  float loss_limit(int64_t step) const;
  // Of each step once, in order.
  StepVerdict judge(int64_t step, double loss, bool skipped);

  double z_score(int64_t step, double loss) const { return spikes_.z_score(step, loss); }
  int64_t skipped() const { return skipped_; }            // of the whole run
  int64_t skipped_in_a_row() const { return in_a_row_; }  // up to the last one judged
  bool has_given_up() const { return in_a_row_ > config_.max_skipped_steps; }

  // For checkpoints.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  TrainingConfig config_;
  LossSpikes spikes_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo
