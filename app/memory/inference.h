// A model for forward passes only, whose weights come from a checkpoint or from model.init_from.
#pragma once

#include <optional>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/validation.h"
#include "app/run/weights.h"

namespace octavo {

// Number and lengths of the sequences to generate. All of them begin with the same prompt.
struct GenerationShape {
  int64_t sequences = 1;
  int64_t prompt_length = 0;
  int64_t capacity = 0;  // Maximum number of tokens per sequence, including the prompt.
};

// Buffers of generation, in addition to those of the model that processes the prompt.
struct GenerationState {
  GenerationState(const Config& config, const GenerationShape& shape, Arena& arena);

  KvCache cache;
  Tensor prompt;              // [prompt_length] int32
  Tensor tokens;              // [sequences] int32
  std::optional<Llama> step;  // The model for one token of each sequence.
};

// Buffers of a model without gradients and optimizer states.
struct InferenceState {
  // Lays out buffers for generation if `shape` is given, or else for a Validator of config.data.validation. `layout`
  // must outlive the state.
  InferenceState(const Config& config, const ParameterLayout& layout, const std::optional<GenerationShape>& shape,
                 Arena& arena, Runtime& runtime);
  InferenceState(const InferenceState&) = delete;
  InferenceState& operator=(const InferenceState&) = delete;

  ShardedParameters parameters;
  std::optional<GenerationState> generation;
  Llama model;
  std::optional<Validator> validator;
};

// Plans, allocates and owns the buffers of a model.
class InferenceModel {
 public:
  // Prepares to generate sequences of `shape`, or to compute the validation loss if there is no shape. Throws an
  // InputError with the required memory if it does not fit.
  InferenceModel(const Config& config, const std::optional<GenerationShape>& shape, Runtime& runtime);

  // Loads the weights `which` from a checkpoint, or from config.model.init_from if `checkpoint` is null.
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster);

  InferenceState& state() { return *state_; }

 private:
  Runtime& runtime_;
  ParameterLayout layout_;
  RunMemory memory_;
  std::unique_ptr<InferenceState> state_;
};

}  // namespace octavo
