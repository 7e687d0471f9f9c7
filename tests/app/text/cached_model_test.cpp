// Compares a prompt that is continued token by token with the whole text at once, as the commands run it. The CPU
// computes in float32, and a GPU in bfloat16.
#include "app/text/cached_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace octavo {
namespace {

struct CachedCase {
  DeviceChoice device;
  bool tied;
  int64_t head_dim;
};

class CachedModelTest : public ::testing::TestWithParam<CachedCase> {
 protected:
  void SetUp() override {
    if (on_gpu() && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }
  static bool on_gpu() { return GetParam().device == DeviceChoice::kCuda; }

  static Config config() {
    Config config;
    config.model = {.hidden_size = 96,
                    .intermediate_size = 160,
                    .num_layers = 3,
                    .num_heads = 6,
                    .num_kv_heads = 2,
                    .head_dim = GetParam().head_dim,
                    .vocab_size = 1003,
                    .rope_theta = 10000.0,
                    .rope_scaling = RopeScaling{8.0, 1.0, 4.0, 64},
                    .rms_norm_eps = 1e-5,
                    .tie_word_embeddings = GetParam().tied};
    config.device = GetParam().device;
    return config;
  }

  static std::vector<float> logits_of_all(const std::vector<int32_t>& ids, ProcessGroup& group) {
    Config config = CachedModelTest::config();
    Runtime runtime(config, group);
    const auto length = static_cast<int64_t>(ids.size());
    CachedModel model(config, {.sequences = 1, .prompt_length = length, .capacity = length}, runtime);
    model.load(config, nullptr);
    const std::span<const float> logits = model.read_prompt(ids);
    return {logits.begin(), logits.end()};
  }
};

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_P(CachedModelTest, StepsEqualWholeForwards) {
  constexpr int64_t kSequences = 3;
  constexpr int64_t kSteps = 5;
  const double tolerance = on_gpu() ? 3e-2 : 1e-5;
  ProcessGroup group;
  for (const int64_t prompt_length : {1, 29}) {
    Config config = CachedModelTest::config();
    Runtime runtime(config, group);
    CachedModel model(
        config, {.sequences = kSequences, .prompt_length = prompt_length, .capacity = prompt_length + kSteps}, runtime);
    model.load(config, nullptr);
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_length));
    std::iota(prompt.begin(), prompt.end(), 17);
    std::vector<std::vector<int32_t>> sequences(kSequences, prompt);
    EXPECT_LT(relative_distance(model.read_prompt(prompt), logits_of_all(prompt, group)), tolerance);
    for (int32_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> tokens;
      for (std::vector<int32_t>& ids : sequences) {
        ids.push_back(101 * static_cast<int32_t>(tokens.size()) + 7 * step);
        tokens.push_back(ids.back());
      }
      const std::span<const float> logits = model.step(tokens);
      const size_t vocab = logits.size() / kSequences;
      ASSERT_EQ(vocab, 1003U);
      for (size_t i = 0; i < kSequences; ++i) {
        EXPECT_LT(relative_distance(logits.subspan(i * vocab, vocab), logits_of_all(sequences[i], group)), tolerance)
            << "sequence " << i << ", step " << step << " after a prompt of " << prompt_length << " tokens";
      }
    }
    EXPECT_THROW(model.step(std::vector<int32_t>{1}), Error) << "a token for one of the sequences";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CachedModelTest,
                         ::testing::Values(CachedCase{DeviceChoice::kCpu, false, 32},
                                           CachedCase{DeviceChoice::kCpu, true, 64},
                                           CachedCase{DeviceChoice::kCuda, false, 32},
                                           CachedCase{DeviceChoice::kCuda, true, 64},
                                           CachedCase{DeviceChoice::kCuda, false, 128}),
                         [](const auto& instance) {
                           const CachedCase& c = instance.param;
                           return std::string(c.device == DeviceChoice::kCuda ? "Gpu" : "Cpu") +
                                  std::to_string(c.head_dim) + (c.tied ? "Tied" : "");
                         });

}  // namespace
}  // namespace octavo
