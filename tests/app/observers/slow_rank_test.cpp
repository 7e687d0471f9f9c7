#include "app/observers/slow_rank.h"

#include <gtest/gtest.h>

#include <vector>

namespace octavo {
namespace {

TEST(SlowRankTest, IsTheRankThatWaitsLeast) {
  const std::vector<RankTimes> ranks = {{.collectives_ms = 40}, {.collectives_ms = 5}, {.collectives_ms = 42}};
  const std::optional<SlowRank> slow = find_slow_rank(ranks, 100);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 1);
  EXPECT_EQ(slow->held_ms, 35);
  EXPECT_FALSE(slow->in_data);
}

TEST(SlowRankTest, IsSlowInDataIfThatIsWhatItWaitsFor) {
  const std::vector<RankTimes> ranks = {{.collectives_ms = 5, .data_ms = 30}, {.collectives_ms = 40, .data_ms = 2}};
  const std::optional<SlowRank> slow = find_slow_rank(ranks, 100);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 0);
  EXPECT_TRUE(slow->in_data);
}

TEST(SlowRankTest, TheSlowestStageWaitsTheLeast) {
  const std::vector<RankTimes> ranks = {{.stages_ms = 30}, {.stages_ms = 50}, {.stages_ms = 5},
                                        {.stages_ms = 15}, {.stages_ms = 20}, {.stages_ms = 0}};
  const StageTimes times = stage_times(ranks, 3, 100);
  EXPECT_DOUBLE_EQ(times.bubble, 0.2);
  // The last two stages wait for 20 ms each in total, and the earlier one is named.
  EXPECT_EQ(times.slowest, 1);
}

TEST(SlowRankTest, SmallDifferencesNameNobody) {
  EXPECT_FALSE(find_slow_rank(std::vector<RankTimes>{{.collectives_ms = 40}, {.collectives_ms = 31}}, 100));
  EXPECT_FALSE(find_slow_rank(std::vector<RankTimes>{{.collectives_ms = 1.9}, {.collectives_ms = 0}}, 3));
  EXPECT_FALSE(find_slow_rank(std::vector<RankTimes>{{.collectives_ms = 40}}, 100));
  // The network is equally slow for all ranks.
  EXPECT_FALSE(find_slow_rank(std::vector<RankTimes>{{.collectives_ms = 90}, {.collectives_ms = 90}}, 100));
}

TEST(SlowRankTest, EachIsNamedOnceAfterThreeStepsInARow) {
  const std::optional<SlowRank> one = SlowRank{.rank = 1, .held_ms = 20};
  const std::optional<SlowRank> two = SlowRank{.rank = 2, .held_ms = 20};
  SlowRanks ranks;
  EXPECT_FALSE(ranks.judge(one));
  EXPECT_FALSE(ranks.judge(one));
  EXPECT_FALSE(ranks.judge(two));
  EXPECT_FALSE(ranks.judge(one));
  EXPECT_FALSE(ranks.judge(one));
  const std::optional<SlowRank> named = ranks.judge(one);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank, 1);
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(ranks.judge(one));
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(ranks.judge(std::nullopt));
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(ranks.judge(one)) << "named before";
  int named_two = 0;
  for (int step = 0; step < 10; ++step) named_two += ranks.judge(two) ? 1 : 0;
  EXPECT_EQ(named_two, 1);
}

}  // namespace
}  // namespace octavo
