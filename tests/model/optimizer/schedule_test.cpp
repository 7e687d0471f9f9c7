#include "model/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace octavo::schedule_test {
namespace {

// With lr 1, min_lr_ratio 0.1 and 4 warm-up steps, the expected values are easy to compute by hand.
constexpr OptimizerConfig config_of(Schedule schedule) {
  return {.lr = 1, .min_lr_ratio = 0.1, .warmup_steps = 4, .schedule = schedule};
}

constexpr OptimizerConfig without_warmup(Schedule schedule) {
  OptimizerConfig config = config_of(schedule);
  config.warmup_steps = 0;
  return config;
}

constexpr OptimizerConfig wsd(Decay type, int64_t decay_steps) {
  OptimizerConfig config = config_of(Schedule::kWsd);
  config.decay_type = type;
  config.decay_steps = decay_steps;
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

TEST(LearningRate, FollowsItsCurveAfterTheWarmup) {
  const struct {
    OptimizerConfig config;
    int64_t total_steps;
    std::map<int64_t, double> by_step;  // Steps after the last one have its learning rate.
  } curves[] = {
      // After a quarter of the decay steps, the angle of the cosine is 45 degrees.
      {config_of(Schedule::kCosine), 24, {{9, 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2}, {14, 0.55}, {24, 0.1}, {30, 0.1}}},
      {config_of(Schedule::kLinear), 24, {{9, 0.775}, {14, 0.55}, {24, 0.1}, {30, 0.1}}},
      {without_warmup(Schedule::kLinear), 10, {{1, 0.91}, {10, 0.1}}},
      {config_of(Schedule::kConstant), 24, {{5, 1}, {14, 1}, {24, 1}, {30, 1}}},
      {without_warmup(Schedule::kConstant), 1, {{1, 1}}},
      // The learning rate does not fall below min_lr_ratio.
      {config_of(Schedule::kInverseSqrt), 1000, {{16, 0.5}, {100, 0.2}, {900, 0.1}}},
      {without_warmup(Schedule::kInverseSqrt), 1000, {{1, 1}, {25, 0.2}}},
      // Step 9 is the first of 16 decay steps.
      {wsd(Decay::kSqrt, 16), 24, {{8, 1}, {9, 0.1 + 0.9 * 0.75}, {12, 0.55}, {24, 0.1}}},
      {wsd(Decay::kLinear, 9), 24, {{5, 1}, {15, 1}, {16, 0.9}, {20, 0.5}, {24, 0.1}, {30, 0.1}}},
      {wsd(Decay::kLinear, 0), 200, {{180, 1}, {190, 0.55}, {200, 0.1}}},  // A value of 0 means a tenth of all steps.
  };
  for (const auto& [config, total_steps, by_step] : curves) {
    for (const auto& [step, expected] : by_step) {
      EXPECT_DOUBLE_EQ(learning_rate(config, step, total_steps), expected)
          << "schedule " << static_cast<int>(config.schedule) << ", step " << step << " of " << total_steps;
    }
  }
}

}  // namespace
}  // namespace octavo::schedule_test
