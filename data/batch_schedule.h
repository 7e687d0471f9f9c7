// How many samples each step of a run takes: a function of the step alone, so that samples, tokens and schedules are
// the same on any mesh and however often a run is resumed.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// Samples a step, for so many steps.
struct BatchPhase {
  int64_t batch_size = 1;
  int64_t steps = 1;
  bool operator==(const BatchPhase&) const = default;
};

class BatchSchedule {
 public:
  // The phases of `warmup` one after the other from step 1 on, then `batch_size` for ever.
  explicit BatchSchedule(int64_t batch_size, std::vector<BatchPhase> warmup = {});

  // Of step `step`, from 1.
  int64_t batch_size(int64_t step) const;
  // Of the first `steps` steps together.
  int64_t samples(int64_t steps) const;

 private:
  int64_t batch_size_;
  std::vector<BatchPhase> warmup_;
};

}  // namespace octavo
