// StepTimeline: when the parts of a step run by the predictor's clock (app/plan/step_clock.h), before it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "app/plan/step_clock.h"

namespace octavo {

struct StepTimeline {
  // "micro-batch", in it "forward" with "block 0" and so on, "head" and "backward" with its blocks, at last
  // "optimizer".
  std::vector<StepClock::TimedRange> ranges;
  // Number of micro-batches that are left out: the ranges are those of the first, of one that stands for all in the
  // middle, and of the last.
  int64_t left_out = 0;
};

// Throws InputError when the machine's rates lack the step's products.
StepTimeline step_timeline(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster);

}  // namespace octavo
