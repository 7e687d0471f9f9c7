// A copy of the training state in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "app/run/training_state.h"
#include "core/staging_memory.h"

namespace octavo {

// A snapshot of a rank's master weights, optimizer states and amax history in host memory. It can be restored into a
// state with the same model and mesh whose linears use another precision recipe.
class StateSnapshot {
 public:
  // Takes snapshots of states on the device of `stream`.
  // Requires: `stream` outlives the object.
  explicit StateSnapshot(const Stream& stream) : memory_(stream) {}

  static int64_t bytes(TrainingState& state);
  // Reserves the memory (StagingMemory::reserve).
  void reserve(int64_t bytes) { memory_.reserve(bytes); }

  // Copies the state to host memory and waits for the copies.
  void take(TrainingState& state, Stream& stream);
  // Restores the snapshot into `state`. `steps_done` is the number of steps that led to the snapshot. If the snapshot
  // has no amax history and the state does, the history is set to zero. The caller then casts the weights
  // (cast_weights).
  void restore(TrainingState& state, int64_t steps_done, Stream& stream) const;

 private:
  StagingMemory memory_;
  char* data_ = nullptr;
  std::vector<int64_t> sizes_;  // Size of each tensor in bytes, in order.
};

}  // namespace octavo
