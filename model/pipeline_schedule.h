// A training step as data: the list of the forward and backward passes of the step's micro-batches, in the order in
// which Llama::run queues them. Pure functions make the lists, so that orders can be tested and compared without a
// model.
//
// The schedule of pipeline stages gives the entries that stage s runs in a step of m micro-batches with p stages of V
// chunks. f, b and w are the times that all chunks of a stage need for forward, for the gradients of inputs and for the
// gradients of weights of one micro-batch.
//
//                forwards before the first backward     idle time of each stage
//   1f1b         p - s                                  (p - 1) (f + b + w)
//   interleaved  2 (p - s) - 1 + (V - 1) p, of chunks   (p - 1) (f + b + w) / V
//   zero_bubble  p - s                                  (p - 1) (f + b - w), if f = b = w
//
// 1f1b is PipeDream-flush (Narayanan et al., arXiv 2104.04473, section 2.2). interleaved is section 2.2 of the same
// paper: chunk v of stage s is part v p + s of the model, so the last stage sends the output of a chunk to the next
// chunk of the first stage. A stage runs the forwards of p micro-batches with one chunk, then of the same micro-batches
// with the next chunk, and backwards likewise with the chunks in falling order. zero_bubble is ZB-H1 (Qi et al., arXiv
// 2401.10241, section 2.3): a stage postpones gradients of weights until it would be idle, as long as no stage holds
// more micro-batches than the first stage of 1f1b.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/config.h"

namespace octavo {

struct StepEntry {
  enum class Kind : uint8_t {
    // Forward of embedding, blocks and head, and the backward of the head.
    kForward,
    kBackward,  // Backward of blocks and embedding.
    // The two parts of kBackward, of a model with LlamaOptions::splits_backward. The second part may be queued at any
    // later time before the next forward that uses the same activations.
    kBackwardInput,    // Gradients of the stage's input and of the weights of norms.
    kBackwardWeights,  // Gradients of all other weights of blocks and embedding.
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;  // Index of the micro-batch in the step, from 0.
  int64_t chunk = 0;        // Index of the chunk of the stage's blocks, from 0.
  bool operator==(const StepEntry&) const = default;
};

// Returns the entries of a step: a forward and a backward of each micro-batch, both in rising order. At most
// `in_flight` micro-batches have activations at a time. The first `in_flight` - 1 forwards come first, and then forward
// and backward alternate (1F1B, Narayanan et al., arXiv 2104.04473). If `in_flight` is 1, each backward directly
// follows its forward.
std::vector<StepEntry> step_entries(int64_t micro_batches, int64_t in_flight = 1);

struct PipelinePosition {
  int64_t stages = 1;
  int64_t stage = 0;
  int64_t chunks = 1;  // Number of chunks of each stage. More than 1 requires the schedule interleaved.
};

// Returns the entries of a stage. The forwards and the backwards of a chunk are in rising order of the micro-batches.
// Two stages list the transfers between them in the same order, so no stage that follows its list waits forever. With
// one stage the list is step_entries().
// Requires: with interleaved, the number of micro-batches is a multiple of p.
std::vector<StepEntry> pipeline_entries(PipelineSchedule schedule, const PipelinePosition& position,
                                        int64_t micro_batches);

// Returns for each chunk the maximum number of micro-batches that have activations of the chunk at a time
// (LlamaOptions::in_flight). For interleaved the number of micro-batches is rounded up to a multiple of p.
std::vector<int64_t> pipeline_in_flight(PipelineSchedule schedule, const PipelinePosition& position,
                                        int64_t micro_batches);

// Returns whether the schedule separates the gradients of weights from those of inputs (LlamaOptions::splits_backward).
bool splits_backward(PipelineSchedule schedule, const PipelinePosition& position);

}  // namespace octavo
