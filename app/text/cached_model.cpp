#include "app/text/cached_model.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

CachedModel::CachedModel(const Config& config, const GenerationShape& shape, Runtime& runtime)
    : inference_(config, shape, runtime), stream_(runtime.stream()) {}

std::span<const float> CachedModel::logits_after(Llama& model, const Tensor& inputs, std::span<const int32_t> tokens) {
  CHECK(static_cast<int64_t>(tokens.size()) == inputs.numel(), "{} tokens where {} were planned for", tokens.size(),
        inputs.numel());
  stream_.copy(inputs.raw(), tokens.data(), inputs.bytes());
  const Tensor logits = model.last_logits(inputs);
  logits_.resize(static_cast<size_t>(logits.numel()));
  if (logits.dtype() == DType::kFloat32) {
    stream_.copy(logits_.data(), logits.raw(), logits.bytes());
    stream_.synchronize();
    return logits_;
  }
  rounded_logits_.resize(logits_.size());
  stream_.copy(rounded_logits_.data(), logits.raw(), logits.bytes());
  stream_.synchronize();
  std::transform(rounded_logits_.begin(), rounded_logits_.end(), logits_.begin(),
                 [](BFloat16 x) { return static_cast<float>(x); });
  return logits_;
}

std::span<const float> CachedModel::read_prompt(std::span<const int32_t> prompt) {
  GenerationState& generation = *inference_.state().generation;
  generation.cache.truncate(0);
  const std::span<const float> logits = logits_after(inference_.state().model, generation.prompt, prompt);
  generation.cache.copy_first(stream_);
  return logits;
}

std::span<const float> CachedModel::step(std::span<const int32_t> tokens) {
  GenerationState& generation = *inference_.state().generation;
  return logits_after(*generation.step, generation.tokens, tokens);
}

}  // namespace octavo
