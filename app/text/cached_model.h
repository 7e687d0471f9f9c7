// A model that continues sequences: it runs on the prompt once, and then on one token of each sequence at a time,
// with the keys and values of what came before in a cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "app/memory/inference.h"

namespace octavo {

class CachedModel {
 public:
  // `config` must have no FP8 recipe. See InferenceModel.
  CachedModel(const Config& config, const GenerationShape& shape, Runtime& runtime);

  // Loads the weights (InferenceModel::load).
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster) {
    inference_.load(config, checkpoint, which);
  }

  // Processes the prompt of all sequences and returns the logits [vocab] after it. Waits for them. They are valid until
  // the next call, like those of step().
  std::span<const float> read_prompt(std::span<const int32_t> prompt);
  // Appends tokens[i] to sequence i and returns the logits [sequences, vocab] after them.
  std::span<const float> step(std::span<const int32_t> tokens);

 private:
  std::span<const float> logits_after(Llama& model, const Tensor& inputs, std::span<const int32_t> tokens);

  InferenceModel inference_;
  Stream& stream_;
  std::vector<float> logits_;
  std::vector<BFloat16> rounded_logits_;
};

}  // namespace octavo
