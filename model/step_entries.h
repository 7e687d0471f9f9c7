// A training step as data: the list of what a model does with the step's micro-batches, in the order in which it is
// queued (Llama::run). A pure function makes it, so that orders can be tested and compared without a model.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

struct StepEntry {
  enum class Kind : uint8_t {
    kForward,   // embedding, blocks, head, and the backward of the head
    kBackward,  // backward of blocks and embedding
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;  // of the step, from 0
  bool operator==(const StepEntry&) const = default;
};

// Returns the entries of a step: forward and backward of each micro-batch, each in rising order. At most `in_flight`
// micro-batches have activations at a time. The first `in_flight` - 1 forwards come first, then forward and backward
// take turns (1F1B, Narayanan et al., arXiv 2104.04473). With one in flight each backward follows its forward.
std::vector<StepEntry> step_entries(int64_t micro_batches, int64_t in_flight = 1);

}  // namespace octavo
