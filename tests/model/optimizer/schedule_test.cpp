#include "model/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo::schedule_test {
namespace {

// lr 1, r 0.1, 4 steps of warm-up: values to be read off by hand.
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
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);  // a quarter: cos 45 degrees
  EXPECT_DOUBLE_EQ(learning_rate(config, 14, 24), 0.55);                                 // half way
  EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 30, 24), 0.1);  // beyond the last
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
  EXPECT_DOUBLE_EQ(learning_rate(config, 900, 1000), 0.1);  // min_lr_ratio
  config.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 1000), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 25, 1000), 0.2);
}

TEST(LearningRate, WarmupStableSqrtDecay) {
  OptimizerConfig config = config_of(Schedule::kWsd);
  config.decay = Decay::kSqrt;
  config.decay_steps = 16;
  EXPECT_DOUBLE_EQ(learning_rate(config, 8, 24), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.1 + 0.9 * 0.75);  // a sixteenth of it
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
  config.decay_steps = 0;  // a tenth of the steps
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
