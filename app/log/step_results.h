// StepResults holds the steps in flight. Loss, gradient norm and duration of a step are read one step late, so that the
// host never waits for the GPU inside a step: push() queues the copy of a step's results, and pop() waits for the
// results of the oldest step.
#pragma once

#include <array>
#include <vector>

#include "app/log/step.h"
#include "app/run/training_state.h"

namespace octavo {

class StepResults {
 public:
  // `state`, on whose stream the steps run, must outlive the object.
  explicit StepResults(TrainingState& state);

  // Starts the clock of the next step now instead of at the end of the previous step. Called before the first step, and
  // after work between steps that is not part of a step, such as a validation or a save.
  void start();

  // Queues the copy of the step's results after its work. At most two steps may be in flight.
  void push(Step step);
  // Waits for the oldest step and returns it with its results. Requires pending() > 0.
  Step pop();
  int64_t pending() const { return pushed_ - popped_; }
  // Returns whether the device has completed everything that was pushed, and therefore waits for the host.
  bool is_idle() const { return marks_[last_mark_].is_reached(); }

 private:
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kMarks = 8;  // More than the number of steps in flight plus the starts between them.

  struct Slot {
    Step step;
    size_t before = 0;  // Index of the mark at the end of the previous step, or at the first start.
    size_t begin = 0;
    size_t end = 0;
  };
  int64_t slot_floats() const { return state_.loss.numel() + 2 + (state_.z_loss.defined() ? 1 : 0); }
  size_t mark();

  TrainingState& state_;
  Stream& stream_;
  Buffer host_;  // [kSlots, slot_floats()] float32: losses by dataset, gradient norm, skip and z-loss of each step.
  std::vector<Event> marks_;
  size_t last_mark_ = 0;
  size_t last_end_ = 0;
  bool has_end_ = false;
  std::array<Slot, kSlots> slots_;
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
