#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

using Weights = std::vector<int64_t>;

std::vector<int64_t> first_datasets(Mixture mixture, int64_t count) {
  std::vector<int64_t> datasets;
  for (int64_t g = 0; g < count; ++g) datasets.push_back(mixture.next());
  return datasets;
}

TEST(Mixture, WeightsBecomeTheSmallestIntegers) {
  const auto integers = [](std::vector<double> weights) { return integer_weights(weights); };
  EXPECT_EQ(integers({0.7, 0.3}), (Weights{7, 3}));
  EXPECT_EQ(integers({1}), (Weights{1}));
  EXPECT_EQ(integers({0, 1e-30}), (Weights{0, 1}));
  EXPECT_EQ(integers({0.25, 0.5, 0.125}), (Weights{2, 4, 1}));
  EXPECT_EQ(integers({30, 0, 10}), (Weights{3, 0, 1}));
  EXPECT_EQ(integers({1234.5, 1}), (Weights{2469, 2}));
  // Weights that are not decimals are rounded, but never to 0.
  const Weights thirds = integers({1.0 / 3, 2.0 / 3, 1e-20});
  EXPECT_NEAR(static_cast<double>(thirds[1]) / static_cast<double>(thirds[0]), 2, 1e-9);
  EXPECT_GE(thirds[2], 1);
}

// Compares each choice with the definition, and checks that the count of each dataset stays close to its share.
TEST(Mixture, TakesTheDatasetThatIsFurthestBehind) {
  std::mt19937_64 random(7);
  for (int draw = 0; draw < 300; ++draw) {
    Weights weights(1 + random() % 12);
    for (int64_t& weight : weights) {
      const uint64_t bits = 1 + random() % 30;
      weight = static_cast<int64_t>(random() % (uint64_t{1} << bits));
    }
    weights[random() % weights.size()] += 1;
    const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
    Mixture mixture(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t g = 0; g < 2000; ++g) {
      int64_t expected = -1;
      for (size_t d = 0; d < weights.size(); ++d) {
        const int64_t behind = weights[d] * g - total * counts[d];
        ASSERT_LT(-behind, total) << "a sample ahead: draw " << draw << " sample " << g;
        ASSERT_LT(behind, weights.size() <= 2 ? total : 3 * total) << "draw " << draw << " sample " << g;
        const bool further = expected < 0 || behind > weights[static_cast<size_t>(expected)] * g -
                                                          total * counts[static_cast<size_t>(expected)];
        if (weights[d] > 0 && further) expected = static_cast<int64_t>(d);
      }
      ASSERT_EQ(mixture.next(), expected) << "draw " << draw << " sample " << g;
      ++counts[static_cast<size_t>(expected)];
      for (size_t d = 0; d < weights.size(); ++d) ASSERT_EQ(mixture.taken(static_cast<int64_t>(d)), counts[d]);
    }
  }
}

// The weights differ by orders of magnitude, so some datasets are chosen rarely.
TEST(Mixture, SeekingFromAnywhereEqualsWalkingFromTheBeginning) {
  std::mt19937_64 random(11);
  for (int draw = 0; draw < 120; ++draw) {
    Weights weights(draw % 20 == 0 ? 100 : 2 + random() % 12);
    const uint64_t most_bits = 2 + random() % 31;
    for (int64_t& weight : weights) weight = static_cast<int64_t>(random() % (uint64_t{2} << random() % most_bits));
    weights[random() % weights.size()] += 1;
    Mixture walked(weights), sought(weights);
    for (int64_t g = 0; g < 20'000; g += 10 + static_cast<int64_t>(random() % 4000)) {
      while (walked.next_sample() < g) walked.next();
      if (random() % 2 == 0) sought.seek(static_cast<int64_t>(random() % 20'000));  // From before or after g.
      sought.seek(g);
      EXPECT_EQ(sought.next_sample(), g);
      for (size_t d = 0; d < weights.size(); ++d) {
        const auto dataset = static_cast<int64_t>(d);
        ASSERT_EQ(sought.taken(dataset), walked.taken(dataset)) << "draw " << draw << " sample " << g;
      }
      for (int next = 0; next < 10; ++next) ASSERT_EQ(sought.next(), walked.next());
    }
  }
}

// Making 2^58 choices one after the other would never end, and 2 billion among 100 datasets would take minutes.
TEST(Mixture, FarSamplesAreReachedDirectly) {
  constexpr int64_t kFar = int64_t{1} << 58;
  Mixture decimals(integer_weights(std::vector<double>{0.7, 0.2, 0.1}));
  decimals.seek(kFar);
  // The tolerance covers the rounding of such a large number to a double.
  EXPECT_NEAR(static_cast<double>(decimals.taken(0)), 0.7 * static_cast<double>(kFar), 64);
  Mixture single({1});
  single.seek(kFar);
  EXPECT_EQ(single.taken(0), kFar);
  Mixture thirds(integer_weights(std::vector<double>{1.0 / 3, 2.0 / 3}));
  thirds.seek(10'000'000);
  EXPECT_NEAR(static_cast<double>(thirds.taken(0)), 1e7 / 3, 1);
  std::vector<double> shares;
  for (int d = 1; d <= 100; ++d) shares.push_back(std::sqrt(d));
  Mixture many(integer_weights(shares));
  many.seek(2'000'000'000);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  EXPECT_NEAR(static_cast<double>(many.taken(99)), 10 / sum * 2e9, 2);
}

TEST(Mixture, TiesGoToTheFirst) {
  EXPECT_EQ(first_datasets(Mixture({1, 1, 1}), 7), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(first_datasets(Mixture({0, 2, 1}), 6), (std::vector<int64_t>{1, 2, 1, 1, 2, 1}));
}

TEST(Mixture, RefusesWeightsOfNothing) { EXPECT_THROW(Mixture({0, 0}), Error); }

}  // namespace
}  // namespace octavo
