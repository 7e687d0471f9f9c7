// Tests of the fraction of time that is useful if GPUs fail, and of how often a run should save.
#include "app/plan/failures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo {
namespace {

constexpr double kDay_s = 86400;

TEST(Failures, RareFailuresLeaveTheCostOfSaving) {
  EXPECT_NEAR(goodput({.gpu_mtbf_hours = 1e12, .save_s = 1}, 1024, 100), 100.0 / 101, 1e-6);
}

TEST(Failures, DefaultIsThePublishedRate) {
  EXPECT_NEAR(seconds_between_failures({}, 16384) / (54 * kDay_s / 466), 1, 1e-4);
}

TEST(Failures, AFailureCostsARestartAndHalfAnInterval) {
  const FailureRates rates{.gpu_mtbf_hours = 1e6, .save_s = 0, .restart_s = 120};
  const double lost = (120 + 900 / 2) / seconds_between_failures(rates, 4096);
  EXPECT_NEAR((1 / goodput(rates, 4096, 900) - 1) / lost, 1, 1e-3);
}

TEST(Failures, MoreGpusFailMoreOften) {
  double share = 1;
  for (const int64_t gpus : {8, 512, 16384, 131072}) {
    const double here = goodput({.restart_s = 300}, gpus, 1800);
    EXPECT_LT(here, share);
    share = here;
  }
}

TEST(Failures, BestIntervalIsBest) {
  for (const double save_s : {0.3, 5.0, 60.0}) {
    const FailureRates rates{.save_s = save_s, .restart_s = 300};
    const double best_s = best_interval_s(rates, 16384);
    const double best = goodput(rates, 16384, best_s);
    EXPECT_GT(best, goodput(rates, 16384, 1.3 * best_s));
    EXPECT_GT(best, goodput(rates, 16384, best_s / 1.3));
  }
}

}  // namespace
}  // namespace octavo
