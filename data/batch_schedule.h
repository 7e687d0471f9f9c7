// The number of samples of each step. It depends on the step only, so samples, tokens and learning rates are the same
// on any mesh and after any number of resumes.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// Batch size for a number of steps.
struct BatchPhase {
  int64_t batch_size = 1;
  int64_t steps = 1;
  bool operator==(const BatchPhase&) const = default;
};

class BatchSchedule {
 public:
  // The phases of `warmup` follow each other from step 1 on. All later steps take `batch_size`.
  explicit BatchSchedule(int64_t batch_size, std::vector<BatchPhase> warmup = {});

  // Returns the number of samples of step `step`, from 1.
  int64_t batch_size(int64_t step) const;
  // Returns the number of samples of the first `steps` steps together.
  int64_t samples(int64_t steps) const;

 private:
  int64_t batch_size_;
  std::vector<BatchPhase> warmup_;
};

}  // namespace octavo
