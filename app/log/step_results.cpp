#include "app/log/step_results.h"

#include <cmath>
#include <utility>

#include "core/error.h"

namespace octavo {

StepResults::StepResults(TrainingState& state)
    : state_(state),
      stream_(state.mesh.stream()),
      host_(Buffer::host(stream_.device(), kSlots * slot_floats() * dtype_bytes(DType::kFloat32))) {
  for (size_t i = 0; i < kMarks; ++i) marks_.emplace_back(stream_.device(), true);
}

size_t StepResults::mark() {
  last_mark_ = (last_mark_ + 1) % kMarks;
  marks_[last_mark_].record(stream_);
  return last_mark_;
}

void StepResults::start() { mark(); }

void StepResults::push(Step step) {
  CHECK(pending() < kSlots, "{} step results are pending", pending());
  const int64_t index = pushed_++ % kSlots;
  float* host = static_cast<float*>(host_.data()) + index * slot_floats();
  const size_t begin = last_mark_;
  for (const Tensor& result : {state_.loss, state_.optimizer.grad_sum_of_squares(), state_.skip, state_.z_loss}) {
    if (!result.defined()) continue;
    stream_.copy(host, result.raw(), result.bytes());
    host += result.numel();
  }
  slots_[static_cast<size_t>(index)] = {.step = std::move(step),
                                        .before = std::exchange(has_end_, true) ? last_end_ : begin,
                                        .begin = begin,
                                        .end = mark()};
  last_end_ = last_mark_;
}

Step StepResults::pop() {
  CHECK(pending() > 0, "no step result is pending");
  const int64_t index = popped_++ % kSlots;
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Event& end = marks_[slot.end];
  end.synchronize();
  const float* host = static_cast<const float*>(host_.data()) + index * slot_floats();
  Step step = std::move(slot.step);
  step.loss_sums.assign(host, host + state_.loss.numel());
  host += state_.loss.numel();
  step.grad_norm = std::sqrt(static_cast<double>(*host++));
  step.skipped = *host++ != 0;
  if (state_.z_loss.defined()) step.row.set("z_loss", step.mean(*host));
  step.step_ms = end.milliseconds_since(marks_[slot.begin]);
  step.pause_ms = marks_[slot.begin].milliseconds_since(marks_[slot.before]);
  return step;
}

}  // namespace octavo
