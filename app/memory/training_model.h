// A model ready to be trained: laid out by the plan and allocated in one go.
#pragma once

#include "app/memory/training_options.h"
#include "app/run/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

class TrainingModel {
 public:
  // Weights are not set yet. `validating`: with room in the arena for a Validator of config.data.validation. A
  // collective; throws InputError where it does not fit. `config` and `runtime` must outlive it.
  TrainingModel(const Config& config, bool validating, Runtime& runtime);
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;

  const TrainingOptions& options() const { return options_; }
  TrainingState& state() { return state_; }
  Arena& arena() { return memory_.arena; }

 private:
  ParameterLayout layout_;
  TrainingOptions options_;
  RunMemory memory_;
  TrainingState state_;
};

}  // namespace octavo
