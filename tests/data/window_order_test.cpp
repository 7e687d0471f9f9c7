#include "data/window_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

constexpr int64_t kLength = 8;  // Tokens per window.

WindowOrder order_of(int64_t num_tokens, uint64_t seed = 1, int64_t dataset = 0, Shuffle shuffle = Shuffle::kLcg) {
  return WindowOrder({num_tokens, kLength - 1, shuffle, seed, dataset});
}

std::vector<Window> epoch_of(WindowOrder& order, int64_t epoch) {
  std::vector<Window> windows;
  for (int64_t i = 0; i < order.num_windows(); ++i) windows.push_back(order.at(epoch * order.num_windows() + i));
  return windows;
}

std::vector<int64_t> indices(const std::vector<Window>& windows) {
  std::vector<int64_t> result;
  for (const Window& window : windows) result.push_back(window.index);
  return result;
}

TEST(WindowOrder, EachWindowOncePerEpochForEverySize) {
  for (const int64_t windows : {1, 2, 3, 7, 255, 256, 257, (1 << 20) + 1}) {
    for (const int64_t rest : {0, 1, 7}) {
      const int64_t tokens = windows * kLength + rest;
      for (const uint64_t seed : {0u, 1u, 99u}) {
        WindowOrder order = order_of(tokens, seed);
        ASSERT_EQ(order.num_windows(), windows);
        for (const int64_t epoch : {0, 1, 5}) {
          std::vector<bool> seen(static_cast<size_t>(windows));
          std::set<int64_t> shifts;
          for (const Window& window : epoch_of(order, epoch)) {
            ASSERT_EQ(window.epoch, epoch);
            ASSERT_FALSE(seen[static_cast<size_t>(window.index)]) << windows << " windows, epoch " << epoch;
            seen[static_cast<size_t>(window.index)] = true;
            shifts.insert((window.begin - window.index * kLength % tokens + tokens) % tokens);
          }
          ASSERT_EQ(shifts.size(), 1u);
          ASSERT_TRUE(epoch > 0 || *shifts.begin() == 0);
        }
        if (windows > 300) break;
      }
    }
  }
}

TEST(WindowOrder, ReachesEveryDrawOfHugeRowsAtOnce) {
  constexpr int64_t kTokens = (int64_t{1} << 40) + 12345;
  WindowOrder order = order_of(kTokens);
  EXPECT_EQ(order.num_windows(), kTokens / kLength);
  for (const int64_t draw : {int64_t{0}, kTokens, int64_t{1} << 55, (int64_t{1} << 60) + 7}) {
    const Window window = order.at(draw);
    EXPECT_EQ(window.epoch, draw / order.num_windows());
    EXPECT_LT(window.begin, kTokens);
    EXPECT_GE(window.begin, 0);
    EXPECT_EQ(order.at(draw), window);
  }
}

TEST(WindowOrder, ARowShorterThanAWindowIsOneWindow) {
  for (int64_t tokens = 1; tokens < kLength; ++tokens) {
    WindowOrder order = order_of(tokens);
    EXPECT_EQ(order.num_windows(), 1);
    std::set<int64_t> begins;
    for (int64_t draw = 0; draw < 100; ++draw) begins.insert(order.at(draw).begin);
    EXPECT_EQ(begins.size(), static_cast<size_t>(tokens)) << "each offset occurs in some epoch";
  }
}

// Two random orders of 1000 windows have the same window at one position on average.
TEST(WindowOrder, EpochsSeedsAndDatasetsDiffer) {
  WindowOrder base = order_of(1000 * kLength);
  const std::vector<int64_t> first = indices(epoch_of(base, 0));
  WindowOrder other_seed = order_of(1000 * kLength, 2);
  WindowOrder other_dataset = order_of(1000 * kLength, 1, 1);
  for (const auto& other : {indices(epoch_of(base, 1)), indices(epoch_of(base, 2)), indices(epoch_of(other_seed, 0)),
                            indices(epoch_of(other_dataset, 0))}) {
    int equal = 0;
    for (size_t i = 0; i < first.size(); ++i) equal += first[i] == other[i];
    EXPECT_LT(equal, 10);
  }
}

// Each epoch shifts the boundaries of its windows by a random offset. This test counts the offsets.
TEST(WindowOrder, EpochsCutElsewhere) {
  WindowOrder order = order_of(1000 * kLength + 5);
  std::vector<int> cuts(kLength);
  constexpr int kEpochs = 800;
  for (int64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const Window window = order.at(epoch * order.num_windows());
    const int64_t tokens = 1000 * kLength + 5;
    ++cuts[static_cast<size_t>((window.begin - window.index * kLength + tokens) % tokens % kLength)];
  }
  for (const int count : cuts) EXPECT_NEAR(count, kEpochs / kLength, 50);  // The tolerance is 5 standard deviations.
}

TEST(WindowOrder, WithoutShuffleWindowsComeInTheOrderOfTheRow) {
  WindowOrder order = order_of(10 * kLength + 3, 1, 0, Shuffle::kNone);
  for (int64_t draw = 0; draw < 35; ++draw) {
    EXPECT_EQ(order.at(draw), (Window{draw / 10, draw % 10, draw % 10 * kLength}));
  }
}

}  // namespace
}  // namespace octavo
