// A model ready for forward passes only, its weights loaded from wherever the config or the user says.
#pragma once

#include <optional>

#include "app/config/config.h"
#include "app/run/runtime.h"
#include "app/run/validation.h"
#include "app/run/weights.h"

namespace octavo {

// The buffers of a model without gradients or moments.
struct InferenceState {
  // `validating`: with the buffers of a Validator of config.data.validation. `layout` must outlive the state.
  InferenceState(const Config& config, const ParameterLayout& layout, bool validating, Arena& arena, Runtime& runtime);
  InferenceState(const InferenceState&) = delete;
  InferenceState& operator=(const InferenceState&) = delete;

  ShardedParameters parameters;
  Llama model;
  std::optional<Validator> validator;
  Tensor inputs;  // [micro_batch_size * seq_len] int32
};

// Plans and allocates in one go.
class InferenceModel {
 public:
  InferenceModel(const Config& config, bool validating, Runtime& runtime);

  // From a checkpoint, or from config.model.init_from without one.
  void load(const Config& config, Checkpoint* checkpoint);

  InferenceState& state() { return *state_; }

 private:
  Runtime& runtime_;
  ParameterLayout layout_;
  RunMemory memory_;
  std::unique_ptr<InferenceState> state_;
};

}  // namespace octavo
