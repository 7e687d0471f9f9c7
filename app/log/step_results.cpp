#include "app/log/step_results.h"

#include <cmath>
#include <utility>

#include "core/error.h"

namespace octavo {

StepResults::StepResults(Device device, int64_t datasets)
    : datasets_(datasets), host_(Buffer::host(device, kSlots * slot_floats() * dtype_bytes(DType::kFloat32))) {
  for (size_t i = 0; i < kMarks; ++i) marks_.emplace_back(device, true);
}

size_t StepResults::mark(Stream& stream) {
  last_mark_ = (last_mark_ + 1) % kMarks;
  marks_[last_mark_].record(stream);
  return last_mark_;
}

void StepResults::start(Stream& stream) { mark(stream); }

void StepResults::push(int64_t step, const Tensors& tensors, Stream& stream) {
  CHECK(pending() < kSlots, "{} step results are pending", pending());
  const int64_t slot = pushed_++ % kSlots;
  float* host = static_cast<float*>(host_.data()) + slot * slot_floats();
  const size_t begin = last_mark_;
  stream.copy(host, tensors.loss_sums.raw(), tensors.loss_sums.bytes());
  stream.copy(host + datasets_, tensors.grad_sum_of_squares.raw(), sizeof(float));
  stream.copy(host + datasets_ + 1, tensors.skip.raw(), sizeof(float));
  const bool has_z_loss = tensors.z_loss.defined();
  if (has_z_loss) stream.copy(host + datasets_ + 2, tensors.z_loss.raw(), sizeof(float));
  steps_[slot] = {.step = step,
                  .before = std::exchange(has_end_, true) ? last_end_ : begin,
                  .begin = begin,
                  .end = mark(stream),
                  .has_z_loss = has_z_loss};
  last_end_ = last_mark_;
}

std::optional<StepResult> StepResults::pop() {
  if (pending() == 0) return std::nullopt;
  const int64_t slot = popped_++ % kSlots;
  const Pending& pending = steps_[slot];
  const Event& end = marks_[pending.end];
  end.synchronize();
  const float* host = static_cast<const float*>(host_.data()) + slot * slot_floats();
  return StepResult{.step = pending.step,
                    .loss_sums = {host, host + datasets_},
                    .z_loss_sum = pending.has_z_loss ? std::optional<double>(host[datasets_ + 2]) : std::nullopt,
                    .grad_norm = std::sqrt(static_cast<double>(host[datasets_])),
                    .skipped = host[datasets_ + 1] != 0,
                    .step_ms = end.milliseconds_since(marks_[pending.begin]),
                    .pause_ms = marks_[pending.begin].milliseconds_since(marks_[pending.before])};
}

}  // namespace octavo
