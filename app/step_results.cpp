#include "app/step_results.h"

#include <cmath>

#include "kernels/core/error.h"

namespace octavo {

StepResults::StepResults(Device device) : host_(Buffer::host(device, kSlots * 2 * dtype_bytes(DType::kFloat32))) {
  for (int64_t i = 0; i < kSlots; ++i) ready_.emplace_back(device);
}

void StepResults::push(int64_t step, const Tensor& loss_sum, const Tensor& grad_sum_of_squares, Stream& stream) {
  CHECK(pending() < kSlots, "{} step results are pending", pending());
  const int64_t slot = pushed_++ % kSlots;
  float* host = static_cast<float*>(host_.data()) + slot * 2;
  steps_[slot] = step;
  stream.copy(host, loss_sum.raw(), sizeof(float));
  stream.copy(host + 1, grad_sum_of_squares.raw(), sizeof(float));
  ready_[static_cast<size_t>(slot)].record(stream);
}

std::optional<StepResult> StepResults::pop() {
  if (pending() == 0) return std::nullopt;
  const int64_t slot = popped_++ % kSlots;
  ready_[static_cast<size_t>(slot)].synchronize();
  const float* host = static_cast<const float*>(host_.data()) + slot * 2;
  return StepResult{steps_[slot], static_cast<double>(host[0]), std::sqrt(static_cast<double>(host[1]))};
}

}  // namespace octavo
