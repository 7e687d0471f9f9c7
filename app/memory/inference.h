// A model for forward passes only, with weights loaded from the place that the config or the user names.
#pragma once

#include <optional>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/validation.h"
#include "app/run/weights.h"

namespace octavo {

// The sequences to generate, which begin with the same prompt.
struct GenerationShape {
  int64_t sequences = 1;
  int64_t prompt_length = 0;
  int64_t capacity = 0;  // Maximum number of tokens per sequence, including the prompt.
};

// The buffers of generation alongside the model, which runs on the prompt.
struct GenerationState {
  GenerationState(const Config& config, const GenerationShape& shape, Arena& arena);

  KvCache cache;
  Tensor prompt;              // [prompt_length] int32
  Tensor tokens;              // [sequences] int32
  std::optional<Llama> step;  // runs on one token of each sequence
};

// The buffers of a model without gradients and moments.
struct InferenceState {
  // Lays out buffers for generation, or for a Validator of config.data.validation. `layout` must outlive the state.
  InferenceState(const Config& config, const ParameterLayout& layout, const std::optional<GenerationShape>& shape,
                 Arena& arena, Runtime& runtime);
  InferenceState(const InferenceState&) = delete;
  InferenceState& operator=(const InferenceState&) = delete;

  ShardedParameters parameters;
  std::optional<GenerationState> generation;
  Llama model;
  std::optional<Validator> validator;
};

// Plans and allocates the buffers of a model and holds them.
class InferenceModel {
 public:
  // Prepares to generate `shape`, or to validate without one. Throws an InputError with the needed memory if it does
  // not fit.
  InferenceModel(const Config& config, const std::optional<GenerationShape>& shape, Runtime& runtime);

  // Loads the weights from a checkpoint, or from config.model.init_from if there is none.
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster);

  InferenceState& state() { return *state_; }

 private:
  Runtime& runtime_;
  ParameterLayout layout_;
  RunMemory memory_;
  std::unique_ptr<InferenceState> state_;
};

}  // namespace octavo
