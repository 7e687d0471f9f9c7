#include "data/window_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

std::vector<uint64_t> images(uint64_t n, uint64_t seed, uint64_t dataset, uint64_t epoch) {
  const Permutation permutation(n, seed, dataset, epoch);
  std::vector<uint64_t> result;
  for (uint64_t i = 0; i < n; ++i) result.push_back(permutation(i));
  return result;
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<uint64_t> sizes = {4095, 4096, 4097, 65537, 1000003, 1 << 20};
  for (uint64_t n = 1; n <= 300; ++n) sizes.push_back(n);
  for (const uint64_t n : sizes) {
    for (uint64_t epoch = 0; epoch < (n > 300 ? 1 : 5); ++epoch) {
      std::vector<bool> seen(n);
      for (const uint64_t value : images(n, 1234, 0, epoch)) {
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << value << " occurs twice among " << n;
        seen[value] = true;
      }
    }
  }
}

// A resumed run must read the order that its checkpoint was saved with.
TEST(Permutation, TheOrderIsFixed) {
  EXPECT_EQ(images(10, 1234, 0, 0), (std::vector<uint64_t>{2, 3, 8, 6, 9, 1, 7, 5, 0, 4}));
  constexpr uint64_t kSize = (uint64_t{1} << 40) - 12345;
  const Permutation permutation(kSize, 7, 3, 2);
  const std::array<std::pair<uint64_t, uint64_t>, 5> expected{{{0, 1043892725980},
                                                               {1, 141839758809},
                                                               {1000, 673679091864},
                                                               {(uint64_t{1} << 39) + 5, 273588597917},
                                                               {kSize - 1, 298751191829}}};
  for (const auto& [position, image] : expected) EXPECT_EQ(permutation(position), image);
}

TEST(Permutation, ReachesHugeSizes) {
  for (const int bits : {33, 40, 47, 62}) {
    const uint64_t n = (uint64_t{1} << bits) - (bits == 62 ? 0 : 12345);
    const Permutation permutation(n, 1, 0, 0);
    std::set<uint64_t> seen;
    double mean = 0;
    for (uint64_t i = 0; i < 4000; ++i) {
      const uint64_t position = i < 2000 ? i : n - 1 - i;
      const uint64_t value = permutation(position);
      ASSERT_LT(value, n);
      ASSERT_TRUE(seen.insert(value).second);
      mean += static_cast<double>(value) / static_cast<double>(n) / 4000;
    }
    EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(1.0 / 12 / 4000));
  }
  EXPECT_THROW(Permutation(0, 1, 0, 0), Error);
  EXPECT_THROW(Permutation((uint64_t{1} << 62) + 1, 1, 0, 0), Error);
}

TEST(Permutation, DependsOnSeedDatasetAndEpochOnly) {
  const auto base = images(1000, 1, 2, 3);
  EXPECT_EQ(base, images(1000, 1, 2, 3));
  // Two random permutations of 1000 elements have the same image at one position on average.
  for (const auto& other : {images(1000, 2, 2, 3), images(1000, 1, 3, 3), images(1000, 1, 2, 4), images(1000, 3, 2, 1),
                            images(1000, 2, 1, 3), images(1000, 1, 3, 2)}) {
    int equal = 0;
    for (size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i];
    EXPECT_LT(equal, 10);
  }
}

TEST(Permutation, TinySizesTakeAllOrdersOverTheEpochs) {
  for (const uint64_t n : {2u, 3u, 4u}) {
    std::set<std::vector<uint64_t>> orders;
    for (uint64_t epoch = 0; epoch < 2000; ++epoch) orders.insert(images(n, 1234, 0, epoch));
    // The permutations of 4 elements that this generator can make are fewer than all 24. For 2 and 3 elements it makes
    // every permutation.
    EXPECT_GE(orders.size(), n == 2 ? 2u : n == 3 ? 6u : 8u) << n;
  }
}

// Returns the chi-square of `counts` against equal shares, in standard deviations from its mean.
double chi_square_deviation(const std::vector<double>& counts) {
  double total = 0, statistic = 0;
  for (const double count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  for (const double count : counts) statistic += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

// Images at a distance are not correlated, and their pairs are spread evenly over a grid of their high bits and over
// one of their low bits. A linear congruential generator without its output permutation fails, because even and odd
// states alternate.
TEST(Permutation, NeighboursLookIndependent) {
  constexpr uint64_t kHighCells = 64, kLowCells = 16;
  for (const uint64_t n : {50'000u, 65'536u, (1u << 20) - 12'345u, 1u << 24}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Permutation permutation(n, seed, 0, seed);
      for (const uint64_t lag : {1u, 2u, 3u, 64u, 1024u}) {
        std::vector<double> high(kHighCells * kHighCells), low(kLowCells * kLowCells);
        const uint64_t count = std::min<uint64_t>(n - lag, 100'000);
        double correlation = 0;
        for (uint64_t i = 0; i < count; ++i) {
          const uint64_t x = permutation(i), y = permutation(i + lag);
          ++high[x * kHighCells / n * kHighCells + y * kHighCells / n];
          ++low[x % kLowCells * kLowCells + y % kLowCells];
          const auto centred = [&](uint64_t v) { return static_cast<double>(v) / static_cast<double>(n) - 0.5; };
          correlation += 12 * centred(x) * centred(y) / static_cast<double>(count);
        }
        SCOPED_TRACE(testing::Message() << n << " windows, seed " << seed << ", lag " << lag);
        EXPECT_LT(std::abs(chi_square_deviation(high)), 6);
        EXPECT_LT(chi_square_deviation(low), 6);
        EXPECT_LT(std::abs(correlation), 5 / std::sqrt(static_cast<double>(count)));
      }
    }
  }
}

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
  for (const int64_t read : {int64_t{0}, kTokens, int64_t{1} << 55, (int64_t{1} << 60) + 7}) {
    const Window window = order.at(read);
    EXPECT_EQ(window.epoch, read / order.num_windows());
    EXPECT_LT(window.begin, kTokens);
    EXPECT_GE(window.begin, 0);
    EXPECT_EQ(order.at(read), window);
  }
}

TEST(WindowOrder, ARowShorterThanAWindowIsOneWindow) {
  for (int64_t tokens = 1; tokens < kLength; ++tokens) {
    WindowOrder order = order_of(tokens);
    EXPECT_EQ(order.num_windows(), 1);
    std::set<int64_t> begins;
    for (int64_t read = 0; read < 100; ++read) begins.insert(order.at(read).begin);
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
TEST(WindowOrder, EpochsSliceElsewhere) {
  WindowOrder order = order_of(1000 * kLength + 5);
  std::vector<int> counts(kLength);
  constexpr int kEpochs = 800;
  for (int64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const Window window = order.at(epoch * order.num_windows());
    const int64_t tokens = 1000 * kLength + 5;
    ++counts[static_cast<size_t>((window.begin - window.index * kLength + tokens) % tokens % kLength)];
  }
  for (const int count : counts) EXPECT_NEAR(count, kEpochs / kLength, 50);  // The tolerance is 5 standard deviations.
}

TEST(WindowOrder, WithoutShuffleWindowsComeInTheOrderOfTheStream) {
  WindowOrder order = order_of(10 * kLength + 3, 1, 0, Shuffle::kNone);
  for (int64_t read = 0; read < 35; ++read) {
    EXPECT_EQ(order.at(read), (Window{read / 10, read % 10, read % 10 * kLength}));
  }
}

}  // namespace
}  // namespace octavo
