// A copy of a rank's master weights, optimizer states and amax history in host memory. It can be restored to a state of
// the same model and mesh whose linears have another precision recipe.
#pragma once

#include <vector>

#include "app/run/training_state.h"
#include "core/staging_memory.h"

namespace octavo {

class StateSnapshot {
 public:
  explicit StateSnapshot(Device device) : memory_(device) {}

  static int64_t bytes(TrainingState& state);
  // Prepares the memory (StagingMemory::reserve).
  void reserve(int64_t bytes) { memory_.reserve(bytes); }

  // Waits for the copies.
  void take(TrainingState& state, Stream& stream);
  // Sets `state`, to which `steps_done` steps led, to the snapshot. An amax history that the snapshot lacks becomes
  // zero. The caller publishes the weights (publish_weights).
  void restore(TrainingState& state, int64_t steps_done, Stream& stream) const;

 private:
  StagingMemory memory_;
  char* data_ = nullptr;
  std::vector<int64_t> sizes_;  // Bytes of each tensor, in order.
};

}  // namespace octavo
