#include <fmt/format.h>
#include <gtest/gtest.h>

#include "app/log/start_screen.h"

namespace octavo {
namespace {

// Succeeds if there is exactly one warning and it contains `text`.
testing::AssertionResult warns(const StageConfig& config, const std::vector<DatasetUse>& datasets,
                               const std::string& text) {
  const std::vector<std::string> warnings = config_warnings(config, datasets);
  if (warnings.size() == 1 && warnings.front().find(text) != std::string::npos) return testing::AssertionSuccess();
  testing::AssertionResult result = testing::AssertionFailure() << warnings.size() << " warnings";
  for (const std::string& warning : warnings) result << "\n" << warning;
  return result;
}

StageConfig config_of(int64_t steps, int64_t warmup_steps) {
  StageConfig config;
  config.training.steps = config.stage.run_steps = steps;
  config.optimizer.warmup_steps = warmup_steps;
  config.data.train = {DatasetSource{.paths = {"text"}}};
  return config;
}

TEST(ConfigWarnings, AConfigWithoutMistakesHasNone) {
  EXPECT_TRUE(config_warnings(config_of(100, 100), std::vector<DatasetUse>{{"text", 1000, 1, 0, 4}}).empty());
}

TEST(ConfigWarnings, AWarmUpThatIsLongerThanItsSchedule) {
  EXPECT_TRUE(warns(config_of(100, 101), {}, "optimizer.warmup_steps is 101, but the schedule has 100 steps"));
  StageConfig config = config_of(100, 50);
  config.stage = {.number = 2, .steps_before = 60, .run_steps = 100, .own_schedule = true};
  EXPECT_TRUE(warns(config, {}, "the schedule has 40 steps"));
  config.stage.own_schedule = false;
  EXPECT_TRUE(config_warnings(config, {}).empty());
}

TEST(ConfigWarnings, AWarmUpOfTheBatchSizeThatIsNotCompleted) {
  StageConfig config = config_of(100, 0);
  config.training.batch_size_warmup = {{.batch_size = 2, .steps = 40}, {.batch_size = 4, .steps = 59}};
  EXPECT_TRUE(config_warnings(config, {}).empty());
  for (const int64_t steps : {60, 61}) {
    config.training.batch_size_warmup[1].steps = steps;
    EXPECT_TRUE(
        warns(config, {}, fmt::format("training.batch_size_warmup has {} steps, but the run has 100", 40 + steps)));
  }
  config.stage = {.number = 1, .steps_before = 0, .run_steps = 200};  // A later stage reaches the full batch size.
  EXPECT_TRUE(config_warnings(config, {}).empty());
}

TEST(ConfigWarnings, ManyEpochsOverADatasetWithoutMaxEpochs) {
  StageConfig config = config_of(100, 0);
  config.data.train = {DatasetSource{.paths = {"a"}}, DatasetSource{.paths = {"b"}}};
  const std::vector<DatasetUse> datasets = {{"a", 1000, 1, 0, 3.9}, {"b", 10, 1, 1, 4.12}};
  EXPECT_TRUE(warns(config, datasets, "4.1 epochs over the dataset b"));
  config.data.train[1].max_epochs = 5;
  EXPECT_TRUE(config_warnings(config, datasets).empty());
}

TEST(ConfigWarnings, ValidationThatNeverRuns) {
  StageConfig config = config_of(100, 0);
  config.validation.every = 0;
  EXPECT_TRUE(config_warnings(config, {}).empty());
  config.data.validation = {DatasetSource{.paths = {"held_out"}}};
  EXPECT_TRUE(warns(config, {}, "validation.every is 0"));
  config.validation.every = 1000;  // The validation runs once, after the last step.
  EXPECT_TRUE(config_warnings(config, {}).empty());
}

}  // namespace
}  // namespace octavo
