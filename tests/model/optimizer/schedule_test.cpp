#include "model/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo::schedule_test {
namespace {

// With lr 1, min_lr_ratio 0.1 and 4 warm-up steps, the expected values are easy to compute by hand.
OptimizerConfig config_of(Schedule schedule) {
  OptimizerConfig config;
  config.lr = 1;
  config.min_lr_ratio = 0.1;
  config.warmup_steps = 4;
  config.schedule = schedule;
  return config;
}

TEST(LearningRate, EveryScheduleWarmsUpLinearly) {
  for (const Schedule schedule :
       {Schedule::kCosine, Schedule::kLinear, Schedule::kConstant, Schedule::kWsd, Schedule::kInverseSqrt}) {
    const OptimizerConfig config = config_of(schedule);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 24), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2, 24), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(config, 4, 24), 1.0);
  }
}

TEST(LearningRate, Cosine) {
  const OptimizerConfig config = config_of(Schedule::kCosine);
  // After a quarter of the decay steps, the angle of the cosine is 45 degrees.
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);
  // Step 14 is halfway through the decay.
  EXPECT_DOUBLE_EQ(learning_rate(config, 14, 24), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 30, 24), 0.1);  // Step 30 is after the last step.
}

TEST(LearningRate, Linear) {
  const OptimizerConfig config = config_of(Schedule::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.775);
  EXPECT_DOUBLE_EQ(learning_rate(config, 14, 24), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 30, 24), 0.1);
}

TEST(LearningRate, Constant) {
  const OptimizerConfig config = config_of(Schedule::kConstant);
  for (const int64_t step : {5, 14, 24, 30}) EXPECT_DOUBLE_EQ(learning_rate(config, step, 24), 1.0);
}

TEST(LearningRate, InverseSqrt) {
  OptimizerConfig config = config_of(Schedule::kInverseSqrt);
  EXPECT_DOUBLE_EQ(learning_rate(config, 16, 1000), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, 100, 1000), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 900, 1000), 0.1);  // The learning rate does not fall below min_lr_ratio.
  config.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 1000), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 25, 1000), 0.2);
}

TEST(LearningRate, WarmupStableSqrtDecay) {
  OptimizerConfig config = config_of(Schedule::kWsd);
  config.decay_type = Decay::kSqrt;
  config.decay_steps = 16;
  EXPECT_DOUBLE_EQ(learning_rate(config, 8, 24), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.1 + 0.9 * 0.75);  // Step 9 is the first of 16 decay steps.
  EXPECT_DOUBLE_EQ(learning_rate(config, 12, 24), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), 0.1);
}

TEST(LearningRate, WarmupStableDecay) {
  OptimizerConfig config = config_of(Schedule::kWsd);
  config.decay_steps = 9;
  EXPECT_DOUBLE_EQ(learning_rate(config, 5, 24), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 15, 24), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 16, 24), 0.9);
  EXPECT_DOUBLE_EQ(learning_rate(config, 20, 24), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 30, 24), 0.1);
  config.decay_steps = 0;  // A value of 0 means a tenth of all steps.
  EXPECT_DOUBLE_EQ(learning_rate(config, 180, 200), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 190, 200), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(config, 200, 200), 0.1);
}

TEST(LearningRate, WithoutWarmupTheFirstStepIsOnTheCurve) {
  OptimizerConfig config = config_of(Schedule::kLinear);
  config.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 10), 0.91);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10, 10), 0.1);
  config.schedule = Schedule::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 1), 1.0);
}

}  // namespace
}  // namespace octavo::schedule_test
