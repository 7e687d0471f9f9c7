#include "app/observers/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace octavo {
namespace {

constexpr double kMinSpread = 0.005;

// Returns a finished step with one target.
Step finished_step(int64_t number, double loss, double grad_norm, double step_ms) {
  return {.number = number, .targets = {1}, .loss_sums = {loss}, .grad_norm = grad_norm, .step_ms = step_ms};
}

// Adds steps whose losses alternate between 2.9 and 3.1. An even number of them has mean 3 and standard deviation 0.1.
Spikes after(int64_t steps, int64_t window = 10, double threshold = 4) {
  Spikes spikes(window, threshold, kMinSpread);
  for (int64_t step = 1; step <= steps; ++step) spikes.add(step, step % 2 == 0 ? 2.9 : 3.1);
  return spikes;
}

TEST(Spikes, ScoresByTheWindowBefore) {
  const Spikes spikes = after(20);
  EXPECT_NEAR(spikes.z_score(22, 3.5), 5, 1e-9);
  EXPECT_NEAR(spikes.limit(22), 3.4, 1e-9);
  EXPECT_TRUE(spikes.is_spike(22, 3.41));
  EXPECT_FALSE(spikes.is_spike(22, 3.39));
  EXPECT_FALSE(spikes.is_spike(22, 0.1)) << "a falling loss is no spike";
}

TEST(Spikes, KnowsNothingBeforeTheWindowIsFull) {
  const Spikes spikes = after(9);
  EXPECT_EQ(spikes.z_score(11, 1e9), 0);
  EXPECT_TRUE(std::isinf(spikes.limit(11)));
  EXPECT_FALSE(after(1000, 0).is_spike(1002, 1e9));
}

// When a step begins, the result of the step before it may not be known yet, so the limit depends on earlier steps.
TEST(Spikes, LimitIsMadeOfStepsTwoBefore) {
  Spikes spikes = after(20);
  const double limit = spikes.limit(22);
  spikes.add(21, 50);
  EXPECT_EQ(spikes.limit(22), limit);
  EXPECT_NE(spikes.limit(23), limit);
}

TEST(Spikes, AFlatLossHasASpread) {
  Spikes spikes(10, 4, kMinSpread);
  for (int64_t step = 1; step <= 10; ++step) spikes.add(step, 2.0);
  EXPECT_NEAR(spikes.limit(12), 2 + 4 * 2 * kMinSpread, 1e-12);
}

TEST(Spikes, ContinuesFromItsState) {
  const Spikes spikes = after(33);
  Spikes resumed(10, 4, kMinSpread);
  resumed.from_json(nlohmann::json::parse(spikes.to_json().dump()));
  for (const int64_t step : {34, 35}) EXPECT_EQ(resumed.limit(step), spikes.limit(step));
  for (const char* text : {"3", "[[1]]", "[[\"a\",2]]", "null"}) {
    resumed.from_json(nlohmann::json::parse(text));
    EXPECT_TRUE(std::isinf(resumed.limit(35))) << text;
  }
}

// The run rolls back to a checkpoint without a state of the guard, for example an imported one.
TEST(StepGuard, ForgetsItsStepsWhereNoneAreSaved) {
  TrainingConfig config;
  config.loss_spike_window = 10;
  config.on_loss_spike = OnLossSpike::kSkip;
  StepGuard guard(config, 10);
  for (int64_t step = 1; step <= 20; ++step) {
    guard.judge(finished_step(step, step % 2 == 0 ? 2.9 : 3.1, 1, 1));
  }
  EXPECT_TRUE(std::isfinite(guard.loss_limit(22)));
  guard.from_json(nullptr);
  EXPECT_TRUE(std::isinf(guard.loss_limit(22)));
}

TEST(StepGuard, MarksWhatStandsOut) {
  TrainingConfig config;
  config.loss_spike_window = 20;
  StepGuard guard(config, 10);
  // The numbers vary a little, also after each outlier.
  const auto usual = [](int64_t step) {
    const double some = step % 2 == 0 ? 0.98 : 1.02;
    return finished_step(step, 3 * some, 0.5 * some, 100 * some);
  };
  int64_t step = 1;
  const auto go_on = [&](int64_t steps) {
    for (const int64_t end = step + steps; step < end; ++step) {
      const Judgement judgement = guard.judge(usual(step));
      EXPECT_FALSE(judgement.spike || judgement.stands_out()) << step;
    }
  };
  const auto judge_odd = [&](const std::function<void(Step&)>& change) {
    Step odd = usual(step++);
    change(odd);
    return guard.judge(odd);
  };
  go_on(60);
  Judgement found = judge_odd([](Step& odd) { odd.step_ms = 310; });
  EXPECT_NEAR(found.slowdown.value(), 3.1, 1e-9);
  EXPECT_FALSE(found.spike || found.loss_z || found.grad_norm_z);
  go_on(60);
  found = judge_odd([](Step& odd) { odd.grad_norm = 1; });
  EXPECT_NEAR(found.grad_norm_z.value(), 20, 1e-9) << "a deviation of 2% counts as one of 5%";
  EXPECT_FALSE(found.spike || found.loss_z || found.slowdown);
  go_on(60);
  found = judge_odd([](Step& odd) { odd.loss_sums = {3.6}; });
  EXPECT_TRUE(found.spike);
  EXPECT_NEAR(found.loss_z.value(), 10, 1e-9);
  go_on(1);
  // A non-finite step is not reported as a spike or an outlier.
  found = judge_odd([](Step& odd) {
    odd.grad_norm = std::numeric_limits<double>::infinity();
    odd.loss_sums = {odd.grad_norm};
    odd.skipped = true;
  });
  EXPECT_FALSE(found.spike || found.stands_out());
  // The resumed guard decides like an uninterrupted one, except for step times, which depend on the machine.
  StepGuard resumed(config, 10);
  resumed.from_json(nlohmann::json::parse(guard.to_json().dump()));
  Step odd = usual(step);
  odd.grad_norm = 1;
  odd.step_ms = 1000;
  found = resumed.judge(odd);
  EXPECT_TRUE(found.grad_norm_z);
  EXPECT_FALSE(found.slowdown);
}

TEST(StepGuard, WarnsOfASlowStepOncePerLoggingInterval) {
  StepGuard guard({}, 10);
  const auto judge = [&](int64_t step, double step_ms) { return guard.judge(finished_step(step, 3, 1, step_ms)); };
  for (int64_t step = 1; step <= 60; ++step) EXPECT_FALSE(judge(step, 120).stands_out());
  EXPECT_FALSE(judge(61, 219).slowdown) << "1.8 times as long, but 99 ms longer";
  for (int64_t step = 62; step <= 150; ++step) {
    const bool is_slow = step == 62 || step == 63 || step == 141;
    const Judgement marks = judge(step, is_slow ? 600 : 120);
    EXPECT_EQ(marks.slowdown.has_value(), is_slow) << step;
    EXPECT_EQ(marks.warns_about_slowdown, is_slow && step != 63) << step;
  }
}

// The gradient norm falls while the weights leave their random start, so norms of the first window are not compared
// with later ones.
TEST(StepGuard, JudgesGradientNormsByStepsAfterTheFirstWindow) {
  StepGuard guard({.loss_spike_window = 20}, 10);
  for (int64_t step = 1; step <= 60; ++step) {
    const double norm = step == 30 || step == 60 ? 2 : 1;
    const Judgement found = guard.judge(finished_step(step, 3, norm, 100));
    EXPECT_EQ(found.grad_norm_z.has_value(), step == 60) << step;
  }
}

}  // namespace
}  // namespace octavo
