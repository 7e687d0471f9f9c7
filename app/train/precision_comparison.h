// Compares FP8 training with bfloat16 during the run, after 01.AI's practice (Yi-Lightning, arXiv 2412.01253). Every
// precision.guard.every steps the next few steps are taken in bfloat16. Then the state is restored, and the run takes
// steps on the same batches in FP8. If the losses differ by more than precision.guard.tolerance, the run warns, or
// rolls back to the state before these steps and continues in bfloat16 for precision.guard.fallback_steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/train/state_snapshot.h"
#include "app/train/training_run.h"

namespace octavo {

// Returns the mean of |FP8 - bfloat16| divided by the mean of the losses in bfloat16. Infinite where a loss is not
// finite.
double precision_gap(std::span<const double> fp8, std::span<const double> bfloat16);

// Every method that is not const is a collective.
class PrecisionComparison {
 public:
  // Reserves host memory for a snapshot of the state if comparisons are due. InputError where too little is available.
  // All must outlive the object.
  PrecisionComparison(const Config& config, Runtime& runtime, TrainingRun& run);

  // Whether a comparison begins after `step`.
  bool due(int64_t step) const;
  // Whether `step` is the last of a fallback to bfloat16.
  bool ends_fallback(int64_t step) const;
  // Whether the run takes the steps that are compared.
  bool running() const { return !bfloat16_losses_.empty(); }

  // TrainingRun::warm_up() with the linears in the other precision.
  void warm_up();
  // Returns the step with its batch: one that the comparison keeps, or else the run's next one. The batch is valid
  // until the next call.
  Step next_batch(int64_t number);
  // Takes the steps to compare in bfloat16, then restores the state, which belongs to `before`.
  void begin(Progress before);
  // Adds the result of a step of the run. Steps come in order.
  void add(int64_t step, double loss);
  // The gap found by the step that was added last. Null unless a comparison ended with that step.
  const std::optional<double>& gap() const { return gap_; }
  bool wants_rollback() const;
  // Whether a comparison is running that falls back to bfloat16 if FP8 fails.
  bool can_roll_back() const { return running() && config_.precision_guard.action == OnPrecisionGap::kBFloat16; }
  // Called when all ranks know that the run is not rolled back by an earlier comparison. The batches are kept no
  // longer, unless a comparison is running.
  void settle();
  // Restores the state before the comparison, after which the run repeats the batches in bfloat16.
  void roll_back();
  void return_to_fp8(int64_t step);
  // Ends a running comparison, as the run has rolled back to a checkpoint.
  void cancel();

 private:
  struct KeptBatch {
    Batch batch;
    Step step;
  };

  void end();
  // Does the work with the linears in the other precision, then restores the state, which belongs to `step`.
  void in_other_precision(int64_t step, const std::function<void()>& work);
  // Switches the linears to the other precision and sets the state to the snapshot.
  void switch_precision(int64_t step);

  const Config& config_;
  Runtime& runtime_;
  TrainingRun& run_;
  const bool enabled_;
  StateSnapshot snapshot_;
  Progress before_;
  std::deque<KeptBatch> batches_;  // Since before_. A deque, so that their addresses stay.
  size_t next_batch_ = 0;          // Index into batches_ of the next batch to repeat.
  bool keeps_batches_ = false;
  std::vector<double> bfloat16_losses_;
  std::vector<double> fp8_losses_;
  std::optional<double> gap_;
};

}  // namespace octavo
