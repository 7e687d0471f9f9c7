// A model that continues sequences with a cache of keys and values: it processes the prompt once, and after that one
// token of each sequence at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "app/memory/inference.h"

namespace octavo {

class CachedModel {
 public:
  // `config` must not use FP8. Throws like InferenceModel.
  CachedModel(const Config& config, const GenerationShape& shape, Runtime& runtime);

  // Loads the weights (InferenceModel::load).
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster) {
    inference_.load(config, checkpoint, which);
  }

  // Processes the prompt of all sequences, waits, and returns the logits [vocab] after the prompt. The result is valid
  // until the next call of read_prompt() or step().
  std::span<const float> read_prompt(std::span<const int32_t> prompt);
  // Appends tokens[i] to sequence i, waits, and returns the logits [sequences, vocab]. The result is valid until the
  // next call of step().
  std::span<const float> step(std::span<const int32_t> tokens);

 private:
  std::span<const float> logits_after(Llama& model, const Tensor& inputs, std::span<const int32_t> tokens);

  InferenceModel inference_;
  Stream& stream_;
  std::vector<float> logits_;
  std::vector<BFloat16> rounded_logits_;
};

}  // namespace octavo
