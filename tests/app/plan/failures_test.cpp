// What failures cost a run, and how often to save.
#include "app/plan/failures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo {
namespace {

constexpr double kDay_s = 86400;

TEST(Failures, WithoutFailuresOnlySavingCosts) {
  const RunTimes g = run_times({.failures_per_gpu_day = 0, .save_s = 1}, 1024, 1000, 100);
  EXPECT_DOUBLE_EQ(g.wall_s, 1010);
  EXPECT_DOUBLE_EQ(g.share, 1000.0 / 1010);
  EXPECT_EQ(g.failures, 0);
  EXPECT_TRUE(std::isinf(g.between_failures_s));
  EXPECT_TRUE(std::isinf(best_interval_s({.failures_per_gpu_day = 0}, 1024)));
}

TEST(Failures, PublishedRate) {
  const RunTimes g = run_times({}, 16384, 54 * kDay_s, 600);
  EXPECT_NEAR(g.between_failures_s, 54 * kDay_s / 466, 1e-6);
  EXPECT_GT(g.failures, 466);  // it takes longer than that
  EXPECT_NEAR(g.failures, 466 * g.wall_s / (54 * kDay_s), 1e-6);
  EXPECT_EQ(g.restart_s, restart_seconds(16384));
}

TEST(Failures, PartsAddUp) {
  const FailureRates rates{.failures_per_gpu_day = 1e-3, .save_s = 5, .restart_s = 120};
  const RunTimes g = run_times(rates, 4096, 10 * kDay_s, 900);
  EXPECT_NEAR(10 * kDay_s + g.saving_s + g.restarting_s + g.repeating_s, g.wall_s, 1e-6);
  EXPECT_NEAR(g.restarting_s, g.failures * 120, 1e-6);
  // About half an interval each.
  EXPECT_NEAR(g.repeating_s / g.failures / 450, 1, 0.1);
  EXPECT_NEAR(g.share, 10 * kDay_s / g.wall_s, 1e-12);
}

TEST(Failures, MoreGpusFailMoreOften) {
  double share = 1;
  for (const int64_t gpus : {8, 512, 16384, 131072}) {
    const double here = run_times({.restart_s = 300}, gpus, kDay_s, 1800).share;
    EXPECT_LT(here, share);
    share = here;
  }
}

TEST(Failures, BestIntervalIsBest) {
  for (const double save_s : {0.3, 5.0, 60.0}) {
    const FailureRates rates{.save_s = save_s, .restart_s = 300};
    const double best_s = best_interval_s(rates, 16384);
    const double m = kDay_s / (rates.failures_per_gpu_day * 16384);
    EXPECT_NEAR(best_s / std::sqrt(2 * save_s * m), 1, 0.05);  // Young's
    const double best = run_times(rates, 16384, kDay_s, best_s).share;
    EXPECT_GT(best, run_times(rates, 16384, kDay_s, 1.3 * best_s).share);
    EXPECT_GT(best, run_times(rates, 16384, kDay_s, best_s / 1.3).share);
  }
  EXPECT_DOUBLE_EQ(best_interval_s({.failures_per_gpu_day = 1, .save_s = 1e6}, 1), kDay_s);
}

}  // namespace
}  // namespace octavo
