#include "app/resolve/inference.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"

namespace octavo {
namespace {

class InferenceModelTest : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceChoice::kCuda && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, InferenceModelTest, ::testing::Values(DeviceChoice::kCpu, DeviceChoice::kCuda),
                         [](const auto& instance) { return instance.param == DeviceChoice::kCpu ? "Cpu" : "Cuda"; });

std::vector<float> logits_after(InferenceModel& model, std::span<const int32_t> tokens) {
  const std::span<const float> logits = model.logits_after(tokens);
  return {logits.begin(), logits.end()};
}

// The memory holds models for several lengths in turn, and the padding holds tokens of longer sequences.
TEST_P(InferenceModelTest, LogitsDependOnlyOnTheTokensOfTheSequence) {
  constexpr int64_t kMaxTokens = 270;
  Config config;
  config.model = {.hidden_size = 96,
                  .intermediate_size = 160,
                  .num_layers = 2,
                  .num_heads = 6,
                  .num_kv_heads = 2,
                  .head_dim = 32,
                  .vocab_size = 1003,
                  .rope_scaling = std::nullopt};
  config.device = GetParam();
  ProcessGroup group;
  const Setting setting = observe_setting(config, group);
  config = setting.run;
  Runtime runtime(setting, group);
  InferenceModel model(config, kMaxTokens, runtime);
  model.load(config, nullptr);
  std::vector<int32_t> ids(kMaxTokens);
  std::iota(ids.begin(), ids.end(), 17);
  const std::span<const int32_t> tokens(ids);
  std::vector<std::vector<float>> rising;
  for (size_t count = 1; count <= tokens.size(); ++count) rising.push_back(logits_after(model, tokens.first(count)));
  for (size_t count = tokens.size(); count > 0; --count) {
    EXPECT_EQ(logits_after(model, tokens.first(count)), rising[count - 1]) << count;
  }
  EXPECT_EQ(rising[0].size(), 1003u) << "no logits of padding";
  ids[0] = 3;
  for (const size_t count : {1, 64, 65, 270}) {
    EXPECT_NE(logits_after(model, tokens.first(count)), rising[count - 1]) << "the first of " << count << " tokens";
  }
  EXPECT_THROW(model.logits_after(std::vector<int32_t>(1000)), Error);
}

}  // namespace
}  // namespace octavo
