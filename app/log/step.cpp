#include "app/log/step.h"

#include <cmath>
#include <utility>

#include "app/process/events.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

std::string describe_bad_step(const Step& step) {
  const double loss = unsigned_nan(step.loss());
  const char* outcome = step.skipped ? "; the step is skipped" : "";
  const std::string samples = fmt::format("samples {} to {}{}", step.samples.begin, step.samples.end - 1, outcome);
  if (!std::isfinite(loss) || !std::isfinite(step.grad_norm)) {
    return fmt::format("step {}: the loss is {:.4g} and the gradient norm {:.4g}; {}", step.number, loss,
                       unsigned_nan(step.grad_norm), samples);
  }
  return fmt::format(
      "step {}: the loss of {:.4f} is a spike, {:.1f} standard deviations above the mean of the steps before; {}",
      step.number, loss, step.judgement.loss_z.value_or(0), samples);
}

}  // namespace

void log_step_warnings(const Step& step) {
  const Judgement& judgement = step.judgement;
  if (step.skipped || judgement.spike) {
    log_event(step.skipped ? EventKind::kSkip : EventKind::kWarning, step.number, describe_bad_step(step));
  }
  if (judgement.grad_norm_z) {
    log_event(EventKind::kWarning, step.number,
              "step {}: the gradient norm of {:.3f} is a spike, {:.1f} standard deviations above the mean of the steps "
              "before",
              step.number, step.grad_norm, *judgement.grad_norm_z);
  }
  if (judgement.warns_about_slowdown) {
    log_event(EventKind::kWarning, step.number,
              "step {}: the step took {:.0f} ms, {:.1f} times the mean of the steps before", step.number, step.step_ms,
              *judgement.slowdown);
  }
}

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
