// A model for forward passes only. Its weights come from a checkpoint or from model.init_from.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/validation.h"
#include "app/run/weights.h"

namespace octavo {

// Buffers of a model without gradients and optimizer states.
struct InferenceState {
  // Lays out buffers for the logits of sequences of up to `max_tokens` tokens. Without `max_tokens`, lays them out for
  // a Validator of config.data.validation.
  // Requires: `layout` outlives the state.
  InferenceState(const Config& config, const ParameterLayout& layout, std::optional<int64_t> max_tokens, Arena& arena,
                 Runtime& runtime);
  InferenceState(const InferenceState&) = delete;
  InferenceState& operator=(const InferenceState&) = delete;

  ShardedParameters parameters;
  std::optional<Llama> model;
  std::optional<Validator> validator;
  Tensor tokens;        // [length] int32: a sequence of up to `max_tokens` tokens and its padding.
  Tensor model_memory;  // [bytes] uint8: memory for a model of any length of `tokens`.
};

// Plans, allocates and owns the buffers of a model.
class InferenceModel {
 public:
  // Prepares to compute logits of sequences of up to `max_tokens` tokens, or the validation loss if it is not given.
  // Throws an InputError with the required memory if the model does not fit.
  InferenceModel(const Config& config, std::optional<int64_t> max_tokens, Runtime& runtime);

  // Loads the weights `which` from a checkpoint, or from config.model.init_from if `checkpoint` is null.
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster);

  // Returns the logits [vocab] after a sequence of up to `max_tokens` tokens, valid until the next call. Waits for the
  // logits. The sequence is padded by less than 64 tokens, or less than a fourth of its length if that is more, so that
  // only few lengths occur. A collective.
  // Requires: the config does not use FP8, in which the padding would change scales.
  std::span<const float> logits_after(std::span<const int32_t> tokens);

  InferenceState& state() { return *state_; }

 private:
  void make_model(int64_t length);

  Config config_;
  Runtime& runtime_;
  ParameterLayout layout_;
  RunMemory memory_;
  std::unique_ptr<InferenceState> state_;
  std::vector<float> logits_;
};

}  // namespace octavo
