#include "app/log/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo {
namespace {

ProgressNumbers numbers() {
  return {.step = 4210,
          .total_steps = 10000,
          .tokens = 4'414'504'960,
          .epoch = 0.312,
          .loss = 2.81234,
          .wps = 16432.4,
          .mfu = 0.9623,
          .memory_gib = 71.28,
          .memory_share = 0.5099,
          .eta_s = 4320};
}

TEST(ProgressLine, LeavesOutWhatMattersLeast) {
  EXPECT_EQ(progress_line(numbers(), 101, false),
            "42.1%  step 4,210/10,000  4.41B tokens  loss 2.8123  16,432 wps  mfu 96.2%  71.3 GiB 51%  eta 1h 12m");
  EXPECT_EQ(progress_line(numbers(), 200, false), progress_line(numbers(), 101, false)) << "100 columns at most";
  EXPECT_EQ(progress_line(numbers(), 80, false),
            "42.1%  step 4,210/10,000  loss 2.8123  16,432 wps  mfu 96.2%  eta 1h 12m");
  EXPECT_EQ(progress_line(numbers(), 60, false), "42.1%  step 4,210/10,000  loss 2.8123  eta 1h 12m");
  EXPECT_EQ(progress_line(numbers(), 40, false), "42.1%  step 4,210/10,000  loss 2.8123");
  EXPECT_EQ(progress_line(numbers(), 20, false), "42.1%  loss 2.8123");
  EXPECT_EQ(progress_line(numbers(), 4, false), "42.");
  ProgressNumbers large = numbers();
  large.total_steps = large.step = 12'345'678;
  large.tokens = 15'600'000'000'000;
  large.wps = 1e9;
  large.eta_s = 1e7;
  for (int columns = 1; columns < 200; ++columns) {
    for (const ProgressNumbers& some : {numbers(), large}) {
      EXPECT_LE(std::ssize(progress_line(some, columns, false)), std::clamp(columns - 1, 1, 100));
    }
  }
}

TEST(ProgressLine, OfACpuAndInColor) {
  ProgressNumbers cpu = numbers();
  cpu.mfu.reset();
  cpu.memory_share.reset();
  EXPECT_EQ(progress_line(cpu, 101, false),
            "42.1%  step 4,210/10,000  4.41B tokens  epoch 0.31  loss 2.8123  16,432 wps  71.3 GiB  eta 1h 12m");
  EXPECT_EQ(progress_line(cpu, 20, true), "\x1b[1;32m42.1%\x1b[0m  loss 2.8123");
}

TEST(Smoothed, FollowsTheLastNumbers) {
  Smoothed smoothed;
  EXPECT_TRUE(std::isnan(smoothed.value()));
  smoothed.add(5);
  EXPECT_DOUBLE_EQ(smoothed.value(), 5);
  smoothed.add(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(smoothed.value(), 5);
  smoothed.add(7);
  EXPECT_NEAR(smoothed.value(), (0.95 * 5 + 7) / 1.95, 1e-12);
  for (int i = 0; i < 300; ++i) smoothed.add(2);
  EXPECT_NEAR(smoothed.value(), 2, 1e-5);
}

}  // namespace
}  // namespace octavo
