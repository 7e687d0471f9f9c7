// Losses, gradient norm and duration of a step come back from the device one step late, so that the host never waits
// for the GPU inside a step: push() queues the copy of a step's numbers, pop() waits for the oldest one's.
#pragma once

#include <optional>
#include <vector>

#include "core/arena.h"

namespace octavo {

struct StepResult {
  int64_t step = 0;
  std::vector<double> loss_sums;  // over the step's tokens, by dataset
  double grad_norm = 0;           // before clipping
  double step_ms = 0;             // since the end of the step before, or since start()
};

class StepResults {
 public:
  StepResults(Device device, int64_t datasets);

  // The next step's time counts from here, not from the end of the step before: first of all, and after work between
  // steps (validation, a checkpoint) that is no part of one.
  void start(Stream& stream);

  // Queues the copy of float32 tensors, [datasets] and [1], on `stream` behind the step that makes them. At most two
  // are pending.
  void push(int64_t step, const Tensor& loss_sums, const Tensor& grad_sum_of_squares, Stream& stream);
  // The oldest pending result; none when nothing is pending.
  std::optional<StepResult> pop();
  int64_t pending() const { return pushed_ - popped_; }

 private:
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kMarks = 8;  // more than the pending steps and starts between them

  struct Pending {
    int64_t step = 0;
    size_t begin = 0;  // marks
    size_t end = 0;
  };
  size_t mark(Stream& stream);

  int64_t datasets_;
  Buffer host_;  // [kSlots, datasets + 1] float32
  std::vector<Event> marks_;
  size_t last_mark_ = 0;
  Pending steps_[kSlots];
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
