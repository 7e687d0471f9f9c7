// The schedules of pipeline stages as data: the list of entries that each stage runs in a step of m micro-batches with
// p stages of V chunks. f, b and w are the times of a forward, of the gradients of inputs and of the gradients of
// weights of all chunks of a stage.
//
//                forwards before the first backward     idle time of each stage
//   1f1b         p - s                                  (p - 1) (f + b + w)
//   interleaved  2 (p - s) - 1 + (V - 1) p, of chunks   (p - 1) (f + b + w) / V
//   zero_bubble  p - s                                  (p - 1) (f + b - w), if f = b = w
//
// 1f1b is PipeDream-flush (Narayanan et al., arXiv 2104.04473, section 2.2). interleaved is section 2.2 of the same
// paper: chunk v of stage s is part v p + s of the model, so the last stage sends the output of a chunk to the next
// chunk of the first stage. Forwards go through p micro-batches with one chunk, then through the same micro-batches
// with the next chunk, and backwards do so with the chunks in falling order. zero_bubble is ZB-H1 (Qi et al., arXiv
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
  int64_t chunks = 1;  // Number of chunks of each stage. More than 1 requires the schedule interleaved.
};

// Returns the entries of a stage. The forwards and the backwards of a chunk are in rising order of the micro-batches,
// and two stages list the transfers between them in the same order, so a stage that waits for its neighbours in the
// order of its list never waits forever. With one stage the list is step_entries(). interleaved requires a multiple of
// p micro-batches.
std::vector<StepEntry> pipeline_entries(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches);

// Returns for each chunk the maximum number of micro-batches that have activations of the chunk at a time
// (LlamaOptions::in_flight). For interleaved the number of micro-batches is rounded up to a multiple of p.
std::vector<int64_t> pipeline_in_flight(PipelineSchedule schedule, const PipelinePlace& place, int64_t micro_batches);

// Returns whether the schedule separates the gradients of weights from those of inputs (LlamaOptions::splits_backward).
bool splits_backward(PipelineSchedule schedule, const PipelinePlace& place);

}  // namespace octavo
