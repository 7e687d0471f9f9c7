// A model that is ready to be trained, laid out by the plan in one allocation.
#pragma once

#include <optional>

#include "app/process/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

class TrainingModel {
 public:
  // Allocates the state as the job's memory plan says, without initializing weights. `validating` adds buffers for a
  // Validator of config.data.validation. A collective.
  // Requires: `runtime` outlives the object.
  TrainingModel(const Job& job, bool validating, Runtime& runtime);
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;

  // Returns the training state. Its address never changes.
  TrainingState& state() { return *state_; }
  Arena& arena() { return memory_.arena; }

  // Lays the state out again for a job of the same stage, which may have another precision (in_other_precision). The
  // values of the state are lost, and references to its parts (the FP8 statistics) become invalid.
  void lay_out_again(const Job& job, Runtime& runtime);

 private:
  void lay_out(const Job& job, Runtime& runtime);

  RunMemory memory_;
  Tensor state_memory_;  // Memory of the state (uint8), large enough for both precisions.
  std::optional<TrainingState> state_;
};

}  // namespace octavo
