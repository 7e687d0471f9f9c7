#include "app/report/series.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace octavo {
namespace {

Series straight(size_t points) {
  Series series;
  for (size_t i = 0; i < points; ++i) series.push_back({static_cast<double>(i), static_cast<double>(i % 7)});
  return series;
}

TEST(Series, DecimatesAndKeepsExtremesAndEnds) {
  Series series = straight(1'000'000);
  series[123'457].y = 99;
  series[777'777].y = -5;
  const Series kept = decimate(series, 2000);
  EXPECT_LE(kept.size(), 2000u);
  EXPECT_GT(kept.size(), 1900u);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 999'999);
  const auto has = [&](double x, double y) {
    return std::any_of(kept.begin(), kept.end(), [&](const Point& p) { return p.x == x && p.y == y; });
  };
  EXPECT_TRUE(has(123'457, 99));
  EXPECT_TRUE(has(777'777, -5));
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](const Point& a, const Point& b) { return a.x < b.x; }));
  EXPECT_EQ(decimate(straight(2000), 2000).size(), 2000u);
}

TEST(Series, SmoothsWithoutBias) {
  for (const Point& point : smooth({{1, 5}, {2, 5}, {3, 5}}, 10)) EXPECT_DOUBLE_EQ(point.y, 5);
  const Series mean = smooth({{1, 1}, {2, 2}}, 2);
  EXPECT_DOUBLE_EQ(mean[0].y, (1 + 0.5 * 2) / 1.5);
  EXPECT_DOUBLE_EQ(mean[1].y, (0.5 * 1 + 2) / 1.5);
  Series line;
  for (int i = 0; i < 400; ++i) line.push_back({1.0 * i, 2.0 * i});
  EXPECT_NEAR(smooth(line, 10)[200].y, 400, 1e-6);  // Smoothing a straight line causes no lag.
  const Series same = smooth(straight(9), 1);
  EXPECT_EQ(same[5].y, 5);
}

TEST(Series, TheTailIsTheLastTenthAndAtMostTwentyPoints) {
  const auto tail_of = [](int points) {
    Series line;
    for (int i = 1; i <= points; ++i) line.push_back({1.0 * i, 1.0 * i});
    return tail_mean(line);
  };
  EXPECT_EQ(tail_of(0), 0);
  EXPECT_EQ(tail_of(9), 9);
  EXPECT_EQ(tail_of(30), 29);
  EXPECT_EQ(tail_of(1000), 990.5);
}

TEST(Series, GapsAreRelativeToTheBaseBetweenItsPoints) {
  const Series gap = relative_gap({{5, 1}, {10, 2.2}, {15, 3}, {20, 5}, {30, 1}}, {{10, 2}, {20, 4}});
  ASSERT_EQ(gap.size(), 3u);
  EXPECT_EQ(gap[0].x, 10);
  EXPECT_NEAR(gap[0].y, 0.1, 1e-12);
  EXPECT_NEAR(gap[1].y, 0, 1e-12);  // At x = 15 the base is 3.
  EXPECT_NEAR(gap[2].y, 0.25, 1e-12);
  EXPECT_TRUE(relative_gap({}, {{1, 1}}).empty());
  EXPECT_TRUE(relative_gap({{1, 1}}, {}).empty());
}

}  // namespace
}  // namespace octavo
