// Compares FP8 training with bfloat16 during a run, as 01.AI did (Yi-Lightning, arXiv 2412.01253). Every
// precision.guard.every steps, the next few steps are computed in bfloat16. Then the state is restored, and the run
// repeats the same batches in FP8. If the losses differ by more than precision.guard.tolerance, the run either warns,
// or rolls back to the state before these steps and continues in bfloat16 for precision.guard.fallback_steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/train/training_run.h"
#include "core/staging_memory.h"

namespace octavo {

// Returns the mean of |FP8 - bfloat16| divided by the mean of the bfloat16 losses. Infinite if a loss is not finite.
double precision_gap(std::span<const double> fp8, std::span<const double> bfloat16);

// A snapshot of a rank's master weights, optimizer states and amax history in host memory. It can be restored into a
// state with the same model and mesh whose linears use another precision recipe.
class StateSnapshot {
 public:
  // Takes snapshots of states on the device of `stream`, which must outlive the object.
  explicit StateSnapshot(const Stream& stream) : memory_(stream) {}

  static int64_t bytes(TrainingState& state);
  // Reserves the memory (StagingMemory::reserve).
  void reserve(int64_t bytes) { memory_.reserve(bytes); }

  // Copies the state to host memory and waits for the copies.
  void take(TrainingState& state, Stream& stream);
  // Restores the snapshot into `state`. `steps_done` is the number of steps that led to the snapshot. If the snapshot
  // has no amax history and the state does, the history is set to zero. The caller then publishes the weights
  // (publish_weights).
  void restore(TrainingState& state, int64_t steps_done, Stream& stream) const;

 private:
  StagingMemory memory_;
  char* data_ = nullptr;
  std::vector<int64_t> sizes_;  // Size of each tensor in bytes, in order.
};

// Every method that is not const is a collective.
class PrecisionComparison {
 public:
  // Reserves host memory for a snapshot of the state if comparisons are enabled. Throws an InputError if too little
  // memory is available. `config`, `runtime` and `run` must outlive the object.
  PrecisionComparison(const Config& config, Runtime& runtime, TrainingRun& run);

  // Returns whether a comparison begins after `step`.
  bool due(int64_t step) const;
  // Returns whether `step` is the last step of a fallback to bfloat16.
  bool ends_fallback(int64_t step) const;
  // Returns whether the run is repeating compared steps in FP8.
  bool running() const { return !bfloat16_losses_.empty(); }

  // Calls TrainingRun::warm_up() with the linears in the other precision.
  void warm_up();
  // Returns the next step with its batch: a batch that the comparison stored, or else the next batch of the run. The
  // batch is valid until the next call.
  Step next_batch(int64_t number);
  // Computes the compared steps in bfloat16, then restores the state. `before` is the progress at that state.
  void begin(Progress before);
  // Adds the loss of a step of the run. Called in the order of steps.
  void add(int64_t step, double loss);
  // Returns the gap of the comparison that ended with the last added step. Empty if none ended.
  const std::optional<double>& gap() const { return gap_; }
  bool wants_rollback() const;
  // Returns whether a running comparison would fall back to bfloat16 if the losses differ.
  bool can_roll_back() const { return running() && config_.precision_guard.action == OnPrecisionGap::kBFloat16; }
  // Called when all ranks know that no earlier comparison makes the run roll back. Frees the stored batches unless a
  // comparison is running.
  void settle();
  // Restores the state before the comparison. The run then repeats the batches in bfloat16.
  void roll_back();
  void return_to_fp8(int64_t step);
  // Ends a running comparison, because the run rolled back to a checkpoint.
  void cancel();

 private:
  struct KeptBatch {
    Batch batch;
    Step step;
  };

  void end();
  // Calls `work` with the linears in the other precision, then restores the state, which belongs to `step`.
  void in_other_precision(int64_t step, const std::function<void()>& work);
  // Switches the linears to the other precision and restores the snapshot.
  void switch_precision(int64_t step);

  const Config& config_;
  Runtime& runtime_;
  TrainingRun& run_;
  const bool enabled_;
  StateSnapshot snapshot_;
  Progress before_;
  std::deque<KeptBatch> batches_;  // Batches after before_. A deque, so that their addresses do not change.
  size_t next_batch_ = 0;          // Index of the next batch in batches_ to repeat.
  bool keeps_batches_ = false;
  std::vector<double> bfloat16_losses_;
  std::vector<double> fp8_losses_;
  std::optional<double> gap_;
};

}  // namespace octavo
