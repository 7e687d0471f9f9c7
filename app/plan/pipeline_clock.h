// Simulates the pipeline stages of a step. All stages run their lists of entries (model/pipeline_schedule.h) at the
// same time, and exchange activations and gradients as parallel/pipeline_group.h does:
//
//   - An entry begins when the entry before it has ended and its input has arrived.
//   - The transfer of an entry's input may begin when the entry before it begins. It needs the data of the sender and
//     the end of the transfer before it on the same link.
//   - The stage that sends must wait until its transfer before on the same link has ended, because both use one buffer.
//
// If all entries take equally long on p stages and transfers take no time, each stage of 1f1b waits for a share of
// (p - 1) / (m + p - 1) of a step with m micro-batches, and each stage of V chunks for (p - 1) / (V m + p - 1).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/pipeline_schedule.h"

namespace octavo {

struct PipelineStep {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t stages = 1;
  int64_t chunks = 1;  // Number of chunks of each stage.
  int64_t micro_batches = 1;
  // Returns the time of an entry on a stage in seconds, without waiting for other stages.
  std::function<double(int64_t stage, const StepEntry& entry)> seconds;
  double transfer_s = 0;  // Time of a transfer between neighbouring stages.
};

struct PipelineTimes {
  double end_s = 0;            // Time from the beginning of the step to the end of the last entry of any stage.
  std::vector<double> busy_s;  // Time that each stage spends in its entries.
};

// Returns the times of the entries of a step. Reductions and the optimizer, which follow the entries, are not included.
PipelineTimes pipeline_times(const PipelineStep& step);

}  // namespace octavo
