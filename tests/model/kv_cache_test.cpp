// Compares text that is processed token by token, with the keys and values of earlier tokens in a cache, with a forward
// over the whole text.
#include "model/block/kv_cache.h"

#include "tests/model/llama_fixture.h"

namespace octavo::kv_cache_test {
namespace {

LlamaOptions inference(const ModelConfig& config, const BatchShape& shape, DType compute, KvCache* cache = nullptr) {
  return {.config = config,
          .shape = shape,
          .precision = {.compute = compute},
          .mode = LlamaMode::kInference,
          .cache = cache};
}

std::vector<float> values_of(const Tensor& logits) {
  std::vector<float> values(static_cast<size_t>(logits.numel()));
  for (int64_t i = 0; i < logits.numel(); ++i) {
    values[static_cast<size_t>(i)] =
        logits.dtype() == DType::kFloat32 ? logits.data<float>()[i] : static_cast<float>(logits.data<BFloat16>()[i]);
  }
  return values;
}

Tensor view(const std::vector<int32_t>& ids) {
  return Tensor(const_cast<int32_t*>(ids.data()), DType::kInt32, {static_cast<int64_t>(ids.size())});
}

struct Case {
  const char* name;
  ModelConfig config;
  DType compute = DType::kFloat32;
};

std::vector<Case> cases() {
  ModelConfig tied = tiny_config();
  tied.tie_word_embeddings = true;
  ModelConfig scaled = tiny_config();
  scaled.rope_scaling = RopeScaling{8.0, 1.0, 4.0, 16};
  ModelConfig own_kv_heads = tiny_config();
  own_kv_heads.num_kv_heads = own_kv_heads.num_heads;
  ModelConfig qk_norm = tiny_config();
  qk_norm.qk_norm = true;
  ModelConfig large_heads = tiny_config();
  large_heads.head_dim = 128;
  large_heads.num_layers = 1;
  return {{"Grouped", tiny_config()},  {"Tied", tied},
          {"RopeScaling", scaled},     {"OwnKvHeads", own_kv_heads},
          {"LargeHeads", large_heads}, {"BFloat16", tiny_config(), DType::kBFloat16},
          {"QkNorm", qk_norm}};
}

// Two models with the same weights and cache: one for prompts, one for single tokens.
class CachedLlama {
 public:
  CachedLlama(const Case& c, int64_t sequences, int64_t prompt, int64_t capacity)
      : cache_arena_(Device::kCpu, int64_t{4} << 20),
        cache_(c.config, sequences, capacity, c.compute, cache_arena_),
        prompt_(inference(c.config, {.micro_batch_size = 1, .seq_len = prompt}, c.compute, &cache_)),
        step_(inference(c.config, {.micro_batch_size = sequences, .seq_len = 1}, c.compute, &cache_)) {}

  std::vector<float> read_prompt(const std::vector<int32_t>& ids) {
    const std::vector<float> logits = values_of(prompt_.llama().last_logits(view(ids)));
    cache_.copy_first(prompt_.stream());
    return logits;
  }
  std::vector<float> step(const std::vector<int32_t>& ids) { return values_of(step_.llama().last_logits(view(ids))); }
  KvCache& cache() { return cache_; }

 private:
  Arena cache_arena_;
  KvCache cache_;
  TinyLlama prompt_, step_;  // The models have the same weights.
};

class KvCacheTest : public ::testing::TestWithParam<Case> {
 protected:
  static std::vector<float> logits_of_all(const std::vector<int32_t>& ids) {
    const Case& c = GetParam();
    TinyLlama model(
        inference(c.config, {.micro_batch_size = 1, .seq_len = static_cast<int64_t>(ids.size())}, c.compute));
    return values_of(model.llama().last_logits(view(ids)));
  }

  static void expect_logits(const std::vector<float>& found, const std::vector<int32_t>& ids) {
    const std::vector<float> expected = logits_of_all(ids);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_LT(relative_error(found.data(), expected.data(), static_cast<int64_t>(expected.size())), tolerance())
        << ids.size() << " tokens";
  }
  static double tolerance() { return GetParam().compute == DType::kFloat32 ? 2e-6 : 2e-2; }
};

INSTANTIATE_TEST_SUITE_P(Models, KvCacheTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(KvCacheTest, EveryStepIsThatOfAWholeForwardPass) {
  const auto vocab = static_cast<size_t>(GetParam().config.vocab_size);
  for (const int64_t prompt_length : {1, 7, 13}) {
    constexpr int64_t kSteps = 11;
    CachedLlama model(GetParam(), 2, prompt_length, prompt_length + kSteps);
    std::mt19937_64 generator(5);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab) - 1);
    std::vector<int32_t> first(static_cast<size_t>(prompt_length));
    for (int32_t& id : first) id = token(generator);
    std::vector<int32_t> second = first;
    expect_logits(model.read_prompt(first), first);
    for (int64_t i = 0; i < kSteps; ++i) {
      first.push_back(token(generator));
      second.push_back(token(generator));
      const std::vector<float> logits = model.step({first.back(), second.back()});
      ASSERT_EQ(logits.size(), 2 * vocab);
      expect_logits({logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(vocab)}, first);
      expect_logits({logits.begin() + static_cast<std::ptrdiff_t>(vocab), logits.end()}, second);
    }
    EXPECT_EQ(model.cache().length(), prompt_length + kSteps);
    EXPECT_THROW(model.step({1, 2}), Error) << "beyond the capacity";
    // Another text reuses the memory of the cache.
    model.cache().truncate(0);
    std::reverse(first.begin(), first.end());
    first.resize(static_cast<size_t>(prompt_length));
    expect_logits(model.read_prompt(first), first);
  }
}

// The cache must matter: a different earlier token changes the logits.
TEST_P(KvCacheTest, WhatTheCacheHoldsMatters) {
  CachedLlama model(GetParam(), 1, 4, 6);
  model.read_prompt({1, 2, 3, 4});
  const std::vector<float> logits = model.step({5});
  const std::vector<float> other = logits_of_all({1, 7, 3, 4, 5});
  EXPECT_GT(relative_error(logits.data(), other.data(), static_cast<int64_t>(other.size())), 0.05);
}

TEST(KvCache, IsForInferenceWithoutFp8) {
  Arena arena(Device::kCpu, int64_t{1} << 20);
  KvCache cache(fp8_config(), 1, 4, DType::kFloat32, arena);
  LlamaOptions options = inference(fp8_config(), {.micro_batch_size = 1, .seq_len = 1}, DType::kFloat32, &cache);
  options.precision.linear = LinearPrecision::kFp8Rowwise;
  EXPECT_THROW(TinyLlama::plan(options), Error);
  options.precision.linear = LinearPrecision::kBFloat16;
  options.mode = LlamaMode::kTraining;
  EXPECT_THROW(TinyLlama::plan(options), Error);
}

}  // namespace
}  // namespace octavo::kv_cache_test
