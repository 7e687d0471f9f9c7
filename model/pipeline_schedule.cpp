#include "model/pipeline_schedule.h"

#include <algorithm>

namespace octavo {

namespace {

// Returns how many micro-batches run forward before the first backward.
int64_t forwards_first(const PipelinePlace& place) { return place.stages - place.stage; }

// The gradients of weights follow those of inputs at a distance of `stage` micro-batches. The distance grows by one per
// stage, as does the time for which a stage of 1f1b is idle at the beginning, so all stages end at about the same time.
std::vector<StepEntry> zero_bubble_entries(const PipelinePlace& place, int64_t micro_batches) {
  std::vector<StepEntry> entries;
  int64_t weights = 0;
  for (const StepEntry& entry : step_entries(micro_batches, forwards_first(place))) {
    if (entry.kind == StepEntry::Kind::kForward) {
      entries.push_back(entry);
      continue;
    }
    entries.push_back({StepEntry::Kind::kBackwardInput, entry.micro_batch});
    if (entry.micro_batch >= place.stage) entries.push_back({StepEntry::Kind::kBackwardWeights, weights++});
  }
  while (weights < micro_batches) entries.push_back({StepEntry::Kind::kBackwardWeights, weights++});
  return entries;
}

}  // namespace

std::vector<StepEntry> pipeline_entries(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches) {
  if (splits_backward(schedule, place)) return zero_bubble_entries(place, micro_batches);
  return step_entries(micro_batches, forwards_first(place));
}

int64_t pipeline_in_flight(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches) {
  const int64_t most = splits_backward(schedule, place) ? place.stages : forwards_first(place);
  return std::max<int64_t>(std::min(most, micro_batches), 1);
}

bool splits_backward(PipelineSchedule schedule, const PipelinePlace& place) {
  return schedule == PipelineSchedule::kZeroBubble && place.stages > 1;
}

}  // namespace octavo
