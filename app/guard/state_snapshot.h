// A copy of what training changes, in host memory: master weights, optimizer states and the amax history, as this rank
// holds them. Whatever recipe the linears have, a state of the same model and mesh can be set to it.
#pragma once

#include <vector>

#include "app/run/training_state.h"
#include "core/staging_memory.h"

namespace octavo {

class StateSnapshot {
 public:
  explicit StateSnapshot(Device device) : memory_(device) {}

  static int64_t bytes(TrainingState& state);
  // Makes the memory ready; see StagingMemory.
  void reserve(int64_t bytes) { memory_.reserve(bytes); }

  // Waits for the copies.
  void take(TrainingState& state, Stream& stream);
  // Of a run that has done `steps_done` steps. The weights are to be published then (publish_weights). An amax history
  // is zero where the snapshot has none.
  void restore(TrainingState& state, int64_t steps_done, Stream& stream) const;

 private:
  StagingMemory memory_;
  char* data_ = nullptr;
  std::vector<int64_t> sizes_;  // bytes of the tensors, one behind the other
};

}  // namespace octavo
