// A model that is ready to be trained, laid out by the plan in one allocation.
#pragma once

#include <optional>

#include "app/process/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

// Returns the options of a run, chosen by the available memory (app/memory/memory_budget.h). Throws an InputError if no
// choice fits. A collective. `config` and `layout` must outlive the options.
TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime);

class TrainingModel {
 public:
  // Plans and allocates the state; the weights are not initialized. `validating` adds buffers for a Validator of
  // config.data.validation. A collective. Throws an InputError if the state does not fit. `config` and `runtime` must
  // outlive the object.
  TrainingModel(const Config& config, bool validating, Runtime& runtime);
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;

  const TrainingOptions& options() const { return options_; }
  // Returns the training state. Its address never changes.
  TrainingState& state() { return *state_; }
  Arena& arena() { return memory_.arena; }
  int64_t bytes() const { return memory_.arena.buffer().bytes(); }  // Returns the number of allocated bytes.

  // Returns whether the linears currently use bfloat16 although the config selects FP8.
  bool in_bfloat16() const { return in_bfloat16_; }
  // Lays the state out again, with linears in bfloat16 or in the precision of the config. The values of the state are
  // lost, and references to its parts (the FP8 statistics) become invalid. Requires precision.guard.every > 0.
  void use_bfloat16(bool in_bfloat16, Runtime& runtime);

 private:
  void lay_out(const TrainingOptions& options, Runtime& runtime);

  ParameterLayout layout_;
  TrainingOptions options_;
  Config bfloat16_config_;
  RunMemory memory_;
  Tensor state_memory_;  // Memory of the state (uint8), large enough for both precisions.
  bool in_bfloat16_ = false;
  std::optional<TrainingState> state_;
};

}  // namespace octavo
