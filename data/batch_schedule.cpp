#include "data/batch_schedule.h"

#include <algorithm>
#include <utility>

namespace octavo {

BatchSchedule::BatchSchedule(int64_t batch_size, std::vector<BatchPhase> warmup)
    : batch_size_(batch_size), warmup_(std::move(warmup)) {}

int64_t BatchSchedule::batch_size(int64_t step) const {
  for (const BatchPhase& phase : warmup_) {
    if (step <= phase.steps) return phase.batch_size;
    step -= phase.steps;
  }
  return batch_size_;
}

int64_t BatchSchedule::samples(int64_t steps) const {
  int64_t samples = 0;
  for (const BatchPhase& phase : warmup_) {
    const int64_t taken = std::min(steps, phase.steps);
    samples += taken * phase.batch_size;
    steps -= taken;
  }
  return samples + steps * batch_size_;
}

}  // namespace octavo
