#include "app/train/step_results.h"

#include <cmath>

#include "core/error.h"

namespace octavo {

StepResults::StepResults(Device device) : host_(Buffer::host(device, kSlots * 2 * dtype_bytes(DType::kFloat32))) {
  for (size_t i = 0; i < kMarks; ++i) marks_.emplace_back(device, true);
}

size_t StepResults::mark(Stream& stream) {
  last_mark_ = (last_mark_ + 1) % kMarks;
  marks_[last_mark_].record(stream);
  return last_mark_;
}

void StepResults::start(Stream& stream) { mark(stream); }

void StepResults::push(int64_t step, int64_t targets, const Tensor& loss_sum, const Tensor& grad_sum_of_squares,
                       Stream& stream) {
  CHECK(pending() < kSlots, "{} step results are pending", pending());
  const int64_t slot = pushed_++ % kSlots;
  float* host = static_cast<float*>(host_.data()) + slot * 2;
  const size_t begin = last_mark_;
  stream.copy(host, loss_sum.raw(), sizeof(float));
  stream.copy(host + 1, grad_sum_of_squares.raw(), sizeof(float));
  steps_[slot] = {step, targets, begin, mark(stream)};
}

std::optional<StepResult> StepResults::pop() {
  if (pending() == 0) return std::nullopt;
  const int64_t slot = popped_++ % kSlots;
  const Pending& pending = steps_[slot];
  const Event& end = marks_[pending.end];
  end.synchronize();
  const float* host = static_cast<const float*>(host_.data()) + slot * 2;
  return StepResult{.step = pending.step,
                    .targets = pending.targets,
                    .loss_sum = static_cast<double>(host[0]),
                    .grad_norm = std::sqrt(static_cast<double>(host[1])),
                    .step_ms = end.milliseconds_since(marks_[pending.begin])};
}

}  // namespace octavo
