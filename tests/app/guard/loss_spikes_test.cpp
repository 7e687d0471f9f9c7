#include "app/guard/loss_spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace octavo {
namespace {

// Losses 2.9 and 3.1 in turn: of a whole number of pairs the mean is 3, the deviation 0.1.
LossSpikes after(int64_t steps, int64_t window = 10, double threshold = 4) {
  LossSpikes spikes(window, threshold);
  for (int64_t step = 1; step <= steps; ++step) spikes.add(step, step % 2 == 0 ? 2.9 : 3.1);
  return spikes;
}

TEST(LossSpikes, ScoresByTheWindowBefore) {
  const LossSpikes spikes = after(20);
  EXPECT_NEAR(spikes.z_score(22, 3.5), 5, 1e-9);
  EXPECT_NEAR(spikes.limit(22), 3.4, 1e-9);
  EXPECT_TRUE(spikes.is_spike(22, 3.41));
  EXPECT_FALSE(spikes.is_spike(22, 3.39));
  EXPECT_FALSE(spikes.is_spike(22, 0.1)) << "a loss that falls is none";
}

TEST(LossSpikes, KnowsNothingBeforeTheWindowIsFull) {
  const LossSpikes spikes = after(9);
  EXPECT_EQ(spikes.z_score(11, 1e9), 0);
  EXPECT_TRUE(std::isinf(spikes.limit(11)));
  EXPECT_FALSE(after(1000, 0).is_spike(1002, 1e9));
}

// Whatever of the step before is known by then.
TEST(LossSpikes, LimitIsMadeOfStepsTwoBefore) {
  LossSpikes spikes = after(20);
  const double limit = spikes.limit(22);
  spikes.add(21, 50);
  EXPECT_EQ(spikes.limit(22), limit);
  EXPECT_NE(spikes.limit(23), limit);
}

TEST(LossSpikes, AFlatLossHasASpread) {
  LossSpikes spikes(10, 4);
  for (int64_t step = 1; step <= 10; ++step) spikes.add(step, 2.0);
  EXPECT_NEAR(spikes.limit(12), 2 + 4 * 2 * LossSpikes::kLeastSpread, 1e-12);
}

TEST(LossSpikes, GoesOnFromItsState) {
  const LossSpikes spikes = after(33);
  LossSpikes resumed(10, 4);
  resumed.from_json(nlohmann::json::parse(spikes.to_json().dump()));
  for (const int64_t step : {34, 35}) EXPECT_EQ(resumed.limit(step), spikes.limit(step));
  for (const char* text : {"3", "[[1]]", "[[\"a\",2]]", "null"}) {
    resumed.from_json(nlohmann::json::parse(text));
    EXPECT_TRUE(std::isinf(resumed.limit(35))) << text;
  }
}

}  // namespace
}  // namespace octavo
