// Compares FP8 training with bfloat16 during a run, as 01.AI did (Yi-Lightning, arXiv 2412.01253). Every
// precision.guard.every steps, the next few steps are computed in bfloat16. Then the state is restored, and the run
// repeats the same batches in FP8. If the losses differ by more than precision.guard.tolerance, the run either warns,
// or rolls back to the state before these steps and continues in bfloat16 for precision.guard.fallback_steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "app/config/config.h"
#include "app/train/training.h"

namespace octavo {

// Returns the mean of |FP8 - bfloat16| divided by the mean of the bfloat16 losses. Infinite if a loss is not finite.
double precision_gap(std::span<const double> fp8, std::span<const double> bfloat16);

class PrecisionComparison {
 public:
  // Compares steps of the job of `training`, if its config has precision.guard.
  // Requires: `training` outlives the object.
  explicit PrecisionComparison(Training& training);

  // Returns whether a comparison begins after `step`.
  bool due(int64_t step) const;
  // Returns whether `step` is the last step of a fallback to bfloat16.
  bool ends_fallback(int64_t step) const;
  // Returns whether the run is repeating compared steps in FP8.
  bool running() const { return !bfloat16_losses_.empty(); }

  // Computes the compared steps in bfloat16, then restores the state. `before` is the progress before these steps. A
  // collective.
  void begin(Progress before);
  // Adds the loss of a step of the run. `logs` is set on the rank that logs the result.
  // Requires: steps are added in order.
  void add(int64_t step, double loss, bool logs);
  // Returns the gap of the comparison that ended with the last added step. Empty if none ended.
  const std::optional<double>& gap() const { return gap_; }
  bool wants_rollback() const;
  // Returns whether a running comparison would fall back to bfloat16 if the losses differ.
  bool can_roll_back() const { return running() && guard_.action == OnPrecisionGap::kBFloat16; }
  // Returns the progress before the last comparison, at which the run continues in bfloat16.
  Progress fallback() const;

 private:
  Training& training_;
  const PrecisionGuardConfig& guard_;
  const bool enabled_;
  Progress before_;
  std::vector<double> bfloat16_losses_;
  std::vector<double> fp8_losses_;
  std::optional<double> gap_;
};

}  // namespace octavo
