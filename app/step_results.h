// Loss and gradient norm come back from the device one step late, so that the host never waits for the GPU inside a
// step: push() queues the copy of a step's two numbers, pop() waits for the oldest one's.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/arena.h"

namespace octavo {

struct StepResult {
  int64_t step = 0;
  double loss_sum = 0;   // over the step's tokens
  double grad_norm = 0;  // before clipping
};

class StepResults {
 public:
  explicit StepResults(Device device);

  // Queues the copy of two [1] float32 tensors, on `stream` behind the step that makes them. At most two are pending.
  void push(int64_t step, const Tensor& loss_sum, const Tensor& grad_sum_of_squares, Stream& stream);
  // The oldest pending result; none when nothing is pending.
  std::optional<StepResult> pop();
  int64_t pending() const { return pushed_ - popped_; }

 private:
  static constexpr int64_t kSlots = 2;

  Buffer host_;  // [kSlots, 2] float32
  std::vector<Event> ready_;
  int64_t steps_[kSlots] = {};
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
