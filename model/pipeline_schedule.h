// The schedules of pipeline stages as data: the list of entries that each stage runs in a step of m micro-batches with
// p stages. f, b and w are the times of a forward, of the gradients of inputs and of the gradients of weights.
//
//                micro-batches in flight on stage s     idle time of each stage
//   1f1b         p - s                                  (p - 1) (f + b + w)
//   zero_bubble  p                                      (p - 1) (f + b - w), if f = b = w
//
// 1f1b is PipeDream-flush (Narayanan et al., arXiv 2104.04473, section 2.2). zero_bubble is ZB-H1 (Qi et al., arXiv
// 2401.10241, section 2.3): the gradients of weights wait until a stage would be idle, as long as no stage holds more
// micro-batches than the first one of 1f1b.
#pragma once

#include <cstdint>
#include <vector>

#include "model/step_entries.h"
#include "parallel/config.h"

namespace octavo {

struct PipelinePlace {
  int64_t stages = 1;
  int64_t stage = 0;
};

// Returns the entries of a stage. Forwards, backwards and the transfers between two stages are in rising order of the
// micro-batches, so a stage that waits for its neighbours in the order of its list never waits forever. With one stage
// the list is step_entries().
std::vector<StepEntry> pipeline_entries(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches);

// Returns the maximum number of micro-batches that have activations on the stage at a time
// (LlamaOptions::in_flight).
int64_t pipeline_in_flight(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches);

// Returns whether the schedule separates the gradients of weights from those of inputs (LlamaOptions::splits_backward).
bool splits_backward(PipelineSchedule schedule, const PipelinePlace& place);

}  // namespace octavo
