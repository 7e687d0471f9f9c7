// A model that is ready to be trained: laid out by the plan, in one allocation.
#pragma once

#include <optional>

#include "app/memory/training_options.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

class TrainingModel {
 public:
  // The weights are not yet set. `validating` reserves space in the arena for a Validator of config.data.validation. A
  // collective. Throws an InputError if it does not fit. `config` and `runtime` must outlive it.
  TrainingModel(const Config& config, bool validating, Runtime& runtime);
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;

  const TrainingOptions& options() const { return options_; }
  // The address of the state does not change.
  TrainingState& state() { return *state_; }
  Arena& arena() { return memory_.arena; }
  int64_t bytes() const { return memory_.arena.buffer().bytes(); }  // Bytes that the run allocated.

  // Returns whether the linears are in bfloat16 although the config has them in FP8.
  bool in_bfloat16() const { return in_bfloat16_; }
  // Lays the state out again, with the linears in bfloat16 or as the config has them. The values of the state are lost,
  // and references to its parts (the FP8 statistics) are no longer valid. Only with precision.guard.every.
  void use_bfloat16(bool in_bfloat16, Runtime& runtime);

 private:
  void lay_out(const TrainingOptions& options, Runtime& runtime);

  ParameterLayout layout_;
  TrainingOptions options_;
  Config bfloat16_config_;
  RunMemory memory_;
  Tensor state_memory_;  // uint8, for either layout.
  bool in_bfloat16_ = false;
  std::optional<TrainingState> state_;
};

}  // namespace octavo
