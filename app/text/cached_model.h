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
  // `config`: without an FP8 recipe. See InferenceModel.
  CachedModel(const Config& config, const GenerationShape& shape, Runtime& runtime);

  // Loads the weights (InferenceModel::load).
  void load(const Config& config, Checkpoint* checkpoint, SavedWeights which = SavedWeights::kMaster) {
    inference_.load(config, checkpoint, which);
  }

  // The logits [vocab] behind the prompt, which all sequences then have. Waits for them; valid until the next call, as
  // those of step().
  std::span<const float> read_prompt(std::span<const int32_t> prompt);
  // Appends tokens[i] to sequence i; the logits [sequences, vocab] behind them.
  std::span<const float> step(std::span<const int32_t> tokens);

 private:
  std::span<const float> logits_after(Llama& model, const Tensor& inputs, std::span<const int32_t> tokens);

  InferenceModel inference_;
  Stream& stream_;
  std::vector<float> logits_;
  std::vector<BFloat16> rounded_logits_;
};

}  // namespace octavo
