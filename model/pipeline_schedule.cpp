#include "model/pipeline_schedule.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

namespace {

// Returns how many micro-batches run forward before the first backward.
int64_t forwards_first(const PipelinePosition& position) { return position.stages - position.stage; }

// Forward i has the same micro-batch and chunk in the lists of all stages, and so has backward j. No stage waits
// forever: assign to forward i of stage s the time s + i, and to its backward j the time s + w + j + 1/2, where
// w = 2 (p - 1 - s) + (V - 1) p is the number of forwards before the one that the first backward follows. Then
//
//   - times rise along each list;
//   - an input is computed one unit of time before the entry that takes it, also between the last stage and the first
//     one, whose entries for the same micro-batch are p positions further in the list;
//   - the backward of the last part of the model follows its forward by 1/2.
//
// So by induction over the time every entry can begin. It can also send its output: the buffer is free, because the
// previous output is taken by an entry whose time is not later.
std::vector<StepEntry> interleaved_entries(const PipelinePosition& position, int64_t micro_batches) {
  const auto& [stages, stage, chunks] = position;
  CHECK(micro_batches % stages == 0, "interleaved with {} micro-batches, expected a multiple of the {} stages",
        micro_batches, stages);
  const int64_t forwards_first = 2 * (stages - stage) - 1 + (chunks - 1) * stages;
  std::vector<StepEntry> entries = step_entries(micro_batches * chunks, forwards_first);
  for (StepEntry& entry : entries) {
    const int64_t place_in_list = entry.micro_batch;
    const int64_t chunk = place_in_list / stages % chunks;
    entry.micro_batch = place_in_list / (stages * chunks) * stages + place_in_list % stages;
    entry.chunk = entry.kind == StepEntry::Kind::kForward ? chunk : chunks - 1 - chunk;
  }
  return entries;
}

// The gradients of weights follow those of inputs at a distance of `stage` micro-batches. The distance grows by one per
// stage, as does the time for which a stage of 1f1b is idle at the beginning, so all stages end at about the same time.
std::vector<StepEntry> zero_bubble_entries(const PipelinePosition& position, int64_t micro_batches) {
  std::vector<StepEntry> entries;
  int64_t weights = 0;
  for (const StepEntry& entry : step_entries(micro_batches, forwards_first(position))) {
    if (entry.kind == StepEntry::Kind::kForward) {
      entries.push_back(entry);
      continue;
    }
    entries.push_back({StepEntry::Kind::kBackwardInput, entry.micro_batch});
    if (entry.micro_batch >= position.stage) entries.push_back({StepEntry::Kind::kBackwardWeights, weights++});
  }
  while (weights < micro_batches) entries.push_back({StepEntry::Kind::kBackwardWeights, weights++});
  return entries;
}

}  // namespace

std::vector<StepEntry> step_entries(int64_t micro_batches, int64_t in_flight) {
  CHECK(in_flight > 0, "in_flight is {}, expected at least 1", in_flight);
  std::vector<StepEntry> entries;
  int64_t forwards = 0;
  for (int64_t backwards = 0; backwards < micro_batches; ++backwards) {
    for (const int64_t end = std::min(backwards + in_flight, micro_batches); forwards < end; ++forwards) {
      entries.push_back({StepEntry::Kind::kForward, forwards});
    }
    entries.push_back({StepEntry::Kind::kBackward, backwards});
  }
  return entries;
}

std::vector<StepEntry> pipeline_entries(PipelineSchedule schedule, const PipelinePosition& position,
                                        int64_t micro_batches) {
  if (splits_backward(schedule, position)) return zero_bubble_entries(position, micro_batches);
  if (schedule == PipelineSchedule::kInterleaved) return interleaved_entries(position, micro_batches);
  CHECK(position.chunks == 1, "{} chunks, which only the schedule interleaved supports", position.chunks);
  return step_entries(micro_batches, forwards_first(position));
}

std::vector<int64_t> pipeline_in_flight(PipelineSchedule schedule, const PipelinePosition& position,
                                        int64_t micro_batches) {
  using Kind = StepEntry::Kind;
  const Kind last = splits_backward(schedule, position) ? Kind::kBackwardWeights : Kind::kBackward;
  if (schedule == PipelineSchedule::kInterleaved) {
    micro_batches = (micro_batches + position.stages - 1) / position.stages * position.stages;
  }
  std::vector<int64_t> now(static_cast<size_t>(position.chunks));
  std::vector<int64_t> most(now.size(), 1);
  for (const StepEntry& entry : pipeline_entries(schedule, position, micro_batches)) {
    const auto chunk = static_cast<size_t>(entry.chunk);
    if (entry.kind == Kind::kForward) most[chunk] = std::max(most[chunk], ++now[chunk]);
    if (entry.kind == last) --now[chunk];
  }
  return most;
}

bool splits_backward(PipelineSchedule schedule, const PipelinePosition& position) {
  return schedule == PipelineSchedule::kZeroBubble && position.stages > 1;
}

}  // namespace octavo
