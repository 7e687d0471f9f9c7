#include "app/log/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo {
namespace {

MetricRow numbers() {
  MetricRow row(4210, 10000);
  row.set("tokens", 4'414'504'960);
  row.set("epochs", NumbersByName{{"web", 0.312}, {"code", 0.1}});
  row.set("loss", 2.81234);
  row.set("wps", 16432.4);
  row.set("mfu", 0.9623);
  row.set("memory_gib", 71.28);
  return row;
}

std::string line_of(const MetricRow& row, int columns, double eta_s = 4320) {
  return progress_line(row, eta_s, 139.8, columns, false);
}

TEST(ProgressLine, LeavesOutWhatMattersLeast) {
  EXPECT_EQ(line_of(numbers(), 101),
            "42.1%  step 4,210/10,000  4.41B tokens  loss 2.8123  16,432 wps  mfu 96.2%  71.3 GiB 51%  eta 1h 12m");
  EXPECT_EQ(line_of(numbers(), 200), line_of(numbers(), 101)) << "100 columns at most";
  EXPECT_EQ(line_of(numbers(), 80), "42.1%  step 4,210/10,000  loss 2.8123  16,432 wps  mfu 96.2%  eta 1h 12m");
  EXPECT_EQ(line_of(numbers(), 60), "42.1%  step 4,210/10,000  loss 2.8123  eta 1h 12m");
  EXPECT_EQ(line_of(numbers(), 40), "42.1%  step 4,210/10,000  loss 2.8123");
  EXPECT_EQ(line_of(numbers(), 20), "42.1%  loss 2.8123");
  EXPECT_EQ(line_of(numbers(), 4), "42.");
  MetricRow large = numbers();
  large.total_steps = large.step = 12'345'678;
  large.set("tokens", 15'600'000'000'000);
  large.set("wps", 1e9);
  for (int columns = 1; columns < 200; ++columns) {
    for (const MetricRow& some : {numbers(), large}) {
      EXPECT_LE(std::ssize(line_of(some, columns, 1e7)), std::clamp(columns - 1, 1, 100));
    }
  }
}

TEST(ProgressLine, OfACpuAndInColor) {
  MetricRow cpu = numbers();
  cpu.set("mfu", std::nullopt);
  EXPECT_EQ(progress_line(cpu, 4320, 0, 101, false),
            "42.1%  step 4,210/10,000  4.41B tokens  epoch 0.31  loss 2.8123  16,432 wps  71.3 GiB  eta 1h 12m");
  EXPECT_EQ(progress_line(cpu, 4320, 0, 20, true), "\x1b[1;32m42.1%\x1b[0m  loss 2.8123");
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
