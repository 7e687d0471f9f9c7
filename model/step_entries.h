// A training step as data: the list of the forward and backward passes of the step's micro-batches, in the order in
// which Llama::run queues them. A pure function makes the list, so that orders can be tested and compared without a
// model.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

struct StepEntry {
  enum class Kind : uint8_t {
    // Forward of embedding, blocks and head, and the backward of the head.
    kForward,
    kBackward,  // Backward of blocks and embedding.
    // The two parts of kBackward, of a model with LlamaOptions::splits_backward. The second part may be queued at any
    // later time before the forward that uses the same activations.
    kBackwardInput,    // Gradients of the stage's input and of the weights of norms.
    kBackwardWeights,  // Gradients of all other weights of blocks and embedding.
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;  // Index of the micro-batch in the step, from 0.
  int64_t chunk = 0;        // Index of the chunk of the stage's blocks, from 0.
  bool operator==(const StepEntry&) const = default;
};

// Returns the entries of a step, which contain forward and backward of each micro-batch, each in rising order. At most
// `in_flight` micro-batches have activations at a time. The first `in_flight` - 1 forwards come first, and then forward
// and backward alternate (1F1B, Narayanan et al., arXiv 2104.04473). If `in_flight` is 1, each backward directly
// follows its forward.
std::vector<StepEntry> step_entries(int64_t micro_batches, int64_t in_flight = 1);

}  // namespace octavo
