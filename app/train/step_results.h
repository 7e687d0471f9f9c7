// Loss, gradient norm and duration of a step come back from the device one step late, so that the host never waits for
// the GPU inside a step: push() queues the copy of a step's two numbers, pop() waits for the oldest one's.
#pragma once

#include <optional>
#include <vector>

#include "core/arena.h"

namespace octavo {

struct StepResult {
  int64_t step = 0;
  int64_t targets = 0;
  double loss_sum = 0;   // over the targets
  double grad_norm = 0;  // before clipping
  double step_ms = 0;    // since the end of the step before, or since start()
};

class StepResults {
 public:
  explicit StepResults(Device device);

  // The next step's time counts from here, not from the end of the step before: first of all, and after work between
  // steps (validation, a checkpoint) that is no part of one.
  void start(Stream& stream);

  // Queues the copy of two [1] float32 tensors, on `stream` behind the step that makes them. At most two are pending.
  void push(int64_t step, int64_t targets, const Tensor& loss_sum, const Tensor& grad_sum_of_squares, Stream& stream);
  // The oldest pending result; none when nothing is pending.
  std::optional<StepResult> pop();
  int64_t pending() const { return pushed_ - popped_; }

 private:
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kMarks = 8;  // more than the pending steps and starts between them

  struct Pending {
    int64_t step = 0;
    int64_t targets = 0;
    size_t begin = 0;  // marks
    size_t end = 0;
  };
  size_t mark(Stream& stream);

  Buffer host_;  // [kSlots, 2] float32
  std::vector<Event> marks_;
  size_t last_mark_ = 0;
  Pending steps_[kSlots];
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
