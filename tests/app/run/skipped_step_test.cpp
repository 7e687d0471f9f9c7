// Tests on every available device that a step changes no bit of the state if its loss or gradient norm is not finite or
// if its loss is above the limit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "app/resolve/resolve.h"
#include "app/resolve/training_model.h"
#include "app/run/weights.h"

namespace octavo {
namespace {

constexpr int64_t kTokens = 2 * 64;

struct SkipCase {
  const char* name;
  DeviceChoice device;
  LinearPrecision linear;
};

class SkippedStepTest : public ::testing::TestWithParam<SkipCase> {
 protected:
  void SetUp() override {
    if (GetParam().device == DeviceChoice::kCuda && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }

  static Config config() {
    Config config;
    config.model = {.hidden_size = 128,
                    .intermediate_size = 256,
                    .num_layers = 2,
                    .num_heads = 2,
                    .num_kv_heads = 1,
                    .head_dim = 64,
                    .vocab_size = 272,
                    .rope_scaling = std::nullopt};
    config.data.seq_len = 64;
    config.training.global_batch_size = 2;
    config.training.micro_batch_size = 1;
    config.training.deterministic = true;
    config.precision.linear = GetParam().linear;
    config.precision.compute = DType::kBFloat16;
    config.compute_given = true;
    config.precision.amax_history = 4;
    config.activation_checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};
    config.device = GetParam().device;
    return config;
  }
};

// A model that takes steps, each with other tokens.
class Steps {
 public:
  explicit Steps(const Config& config)
      : setting_(observe_setting(config, group_)),
        runtime_(setting_, group_),
        model_(resolve(setting_.run, LiveSite(runtime_), {}), false, runtime_) {
    load_initial_weights(setting_.run, nullptr, model_.state().parameters, runtime_.stream());
    cast_weights(model_.state());
  }

  enum class Spoiled { kNot, kLoss, kGradient };
  // Returns whether the step was skipped.
  bool take(int64_t number, Spoiled spoiled = Spoiled::kNot) {
    TrainingState& state = model_.state();
    upload(number);
    const TrainingStep step{.number = number,
                            .lr = 1e-2,
                            .targets = kTokens,
                            .loss_limit = spoiled == Spoiled::kLoss ? 0.5f : std::numeric_limits<float>::infinity()};
    queue_entries(state, step, entries_of_step(state));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (spoiled == Spoiled::kGradient) runtime_.stream().copy(state.parameters.gradients().raw(), &nan, sizeof(nan));
    finish_step(state, step);
    loss_ = read(state.loss).front();
    return read(state.skip).front() != 0;
  }
  float loss() const { return loss_; }

  // Returns the values of everything that a step changes.
  std::vector<float> everything() {
    TrainingState& state = model_.state();
    std::vector<float> all = read(state.parameters.master());
    const auto append = [&](const Tensor& tensor) {
      const std::vector<float> values = read(tensor);
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const OptimizerState& kept : state.optimizer.states()) append(kept.shards);
    if (const Tensor history = amax_history(state); history.defined()) append(history);
    return all;
  }

 private:
  void upload(int64_t number) {
    Batch batch;
    for (int64_t i = 0; i < kTokens; ++i) {
      batch.inputs.push_back(static_cast<int32_t>(i * (37 + 2 * number) % 256));
      batch.targets.push_back(static_cast<int32_t>(i * (53 + 4 * number) % 256));
      batch.document_start.push_back(0);
    }
    batch.dataset.assign(2, 0);
    model_.state().batch.upload(batch);
  }
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> host(static_cast<size_t>(tensor.numel()));
    runtime_.stream().copy(host.data(), tensor.raw(), tensor.bytes());
    runtime_.stream().synchronize();
    return host;
  }

  ProcessGroup group_;
  Setting setting_;
  Runtime runtime_;
  TrainingModel model_;
  float loss_ = 0;
};

TEST_P(SkippedStepTest, LeavesNoTrace) {
  std::vector<float> expected_losses;
  {
    Steps undisturbed(config());
    for (const int64_t number : {1, 2, 4, 5}) {
      EXPECT_FALSE(undisturbed.take(number));
      expected_losses.push_back(undisturbed.loss());
    }
  }
  for (const Steps::Spoiled spoiled : {Steps::Spoiled::kLoss, Steps::Spoiled::kGradient}) {
    Steps steps(config());
    std::vector<float> losses;
    for (const int64_t number : {1, 2}) {
      EXPECT_FALSE(steps.take(number));
      losses.push_back(steps.loss());
    }
    const std::vector<float> before = steps.everything();
    EXPECT_TRUE(steps.take(3, spoiled));
    EXPECT_EQ(steps.everything(), before);
    for (const int64_t number : {4, 5}) {
      EXPECT_FALSE(steps.take(number));
      losses.push_back(steps.loss());
    }
    EXPECT_EQ(losses, expected_losses);
  }
}

// In the first step delayed scaling has no history yet.
TEST_P(SkippedStepTest, TheFirstStepLeavesNoTrace) {
  const auto losses_of = [](Steps& steps) {
    std::vector<float> losses;
    for (const int64_t number : {2, 3, 4, 5, 6, 7}) {
      EXPECT_FALSE(steps.take(number)) << number;
      losses.push_back(steps.loss());
    }
    return losses;
  };
  std::vector<float> expected;
  {
    Steps undisturbed(config());
    expected = losses_of(undisturbed);
  }
  for (const Steps::Spoiled spoiled : {Steps::Spoiled::kLoss, Steps::Spoiled::kGradient}) {
    Steps steps(config());
    EXPECT_TRUE(steps.take(1, spoiled));
    EXPECT_EQ(losses_of(steps), expected);
  }
}

std::vector<SkipCase> skip_cases() {
  std::vector<SkipCase> cases;
  for (const auto& [device, choice] : {std::pair{"cpu", DeviceChoice::kCpu}, std::pair{"gpu", DeviceChoice::kCuda}}) {
    for (const RecipeTraits& recipe : kRecipes) cases.push_back({device, choice, recipe.recipe});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Devices, SkippedStepTest, ::testing::ValuesIn(skip_cases()), [](const auto& instance) {
  return std::string(instance.param.name) + "_" + traits(instance.param.linear).name;
});

}  // namespace
}  // namespace octavo
