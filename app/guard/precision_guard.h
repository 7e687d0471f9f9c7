// The guard of FP8 training, after 01.AI's practice (Yi-Lightning, arXiv 2412.01253: now and then an FP8 checkpoint
// is trained on in bfloat16 and the losses are compared): every so many steps the next few are taken in bfloat16 first,
// from the same state and samples, and then in FP8 as the run's own. Where the losses are further apart than tolerated,
// the run warns, or goes back to before these steps and on in bfloat16 for a while.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "app/config/config.h"

namespace octavo {

class PrecisionGuard {
 public:
  explicit PrecisionGuard(const PrecisionGuardConfig& config) : config_(config) {}

  // Whether the steps behind this one are to be compared.
  bool due(int64_t step) const { return config_.every > 0 && step % config_.every == 0 && !comparing(); }
  int64_t steps() const { return config_.steps; }

  // The losses in bfloat16 of the steps behind `step`, of which steps() are to be compared.
  void begin(int64_t step, std::vector<double> losses);
  bool comparing() const { return !expected_.empty(); }
  int64_t first_step() const { return first_; }

  // Of an FP8 step, in order. With the last one: the mean of |FP8 - bfloat16| over the mean of bfloat16; infinite where
  // a loss is not finite.
  std::optional<double> compare(int64_t step, double loss);
  bool tolerates(double gap) const { return gap <= config_.tolerance; }
  void end() { expected_.clear(); }

 private:
  PrecisionGuardConfig config_;
  int64_t first_ = 0;  // the step before those that are compared
  std::vector<double> expected_;
  double difference_ = 0;
};

}  // namespace octavo
