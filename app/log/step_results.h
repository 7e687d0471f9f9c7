// Losses, gradient norm and duration of a step come back from the device one step late, so that the host never waits
// for the GPU inside a step: push() queues the copy of a step's numbers, pop() waits for the oldest one's.
#pragma once

#include <optional>
#include <vector>

#include "core/arena.h"

namespace octavo {

struct StepResult {
  int64_t step = 0;
  std::vector<double> loss_sums;     // over the step's tokens, by dataset
  std::optional<double> z_loss_sum;  // over the same; none without training.z_loss
  double grad_norm = 0;              // before clipping
  bool skipped = false;              // it changed nothing
  double step_ms = 0;                // since the end of the step before, or since start()
  double pause_ms = 0;               // from the end of the step before to start(), where that was between them
};

class StepResults {
 public:
  StepResults(Device device, int64_t datasets);

  // The next step's time counts from here, not from the end of the step before: first of all, and after work between
  // steps (validation, a checkpoint) that is no part of one.
  void start(Stream& stream);

  // Float32 tensors that a step makes: [datasets], [1], [1], and [1] or undefined.
  struct Tensors {
    const Tensor& loss_sums;
    const Tensor& grad_sum_of_squares;
    const Tensor& skip;
    const Tensor& z_loss;
  };
  // Queues their copy on `stream` behind the step. At most two are pending.
  void push(int64_t step, const Tensors& tensors, Stream& stream);
  // The oldest pending result; none when nothing is pending.
  std::optional<StepResult> pop();
  int64_t pending() const { return pushed_ - popped_; }
  // Whether the device has done all that was pushed: it waits for the host.
  bool is_idle() const { return marks_[last_mark_].is_reached(); }

 private:
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kMarks = 8;  // more than the pending steps and starts between them

  struct Pending {
    int64_t step = 0;
    size_t before = 0;  // marks: the end of the step before, or the first start
    size_t begin = 0;
    size_t end = 0;
    bool has_z_loss = false;
  };
  int64_t slot_floats() const { return datasets_ + 3; }
  size_t mark(Stream& stream);

  int64_t datasets_;
  Buffer host_;  // [kSlots, slot_floats()] float32
  std::vector<Event> marks_;
  size_t last_mark_ = 0;
  size_t last_end_ = 0;
  bool has_end_ = false;
  Pending steps_[kSlots];
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo
