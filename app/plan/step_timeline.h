// StepTimeline: when the blocks of a step run by the predictor's clock (app/plan/step_clock.h), before it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "app/plan/machine_rates.h"
#include "app/plan/predictor.h"

namespace octavo {

struct TimeSpan {
  double begin_s = 0;
  double end_s = 0;
};

struct MicroBatchTimes {
  std::vector<TimeSpan> forward;   // by block
  std::vector<TimeSpan> backward;  // by block, its recomputation included
  TimeSpan head;                   // forward and backward of it
  TimeSpan whole;
};

struct StepTimeline {
  std::vector<MicroBatchTimes> micro_batches;  // the first, one that stands for those between, and the last
  int64_t left_out = 0;                        // of those between
  double end_s = 0;                            // after the optimizer
};

// Of the compute stream. Throws InputError when the machine's rates lack the step's products.
StepTimeline step_timeline(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster);

}  // namespace octavo
