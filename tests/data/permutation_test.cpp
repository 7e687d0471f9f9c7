#include "data/permutation.h"

#include <gtest/gtest.h>

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

void expect_bijection(const std::vector<uint64_t>& values) {
  std::vector<bool> seen(values.size());
  for (const uint64_t value : values) {
    ASSERT_LT(value, values.size());
    ASSERT_FALSE(seen[value]) << value << " occurs twice among " << values.size();
    seen[value] = true;
  }
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (uint64_t n = 1; n <= 300; ++n) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) expect_bijection(images(n, 1234, 0, epoch));
  }
}

TEST(Permutation, IsABijectionForLargeSizes) {
  for (const uint64_t n : {4095u, 4096u, 4097u, 65537u, 1000003u, 1u << 20}) expect_bijection(images(n, 7, 1, 2));
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
}

TEST(Permutation, RefusesImpossibleSizes) {
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

// Statistics of the images of consecutive positions.
struct SerialStatistics {
  double correlation = 0;  // Correlation of consecutive images.
  double alternation = 0;  // Share of consecutive pairs with one even and one odd image.
  double chi_square = 0;   // Chi-square per degree of freedom of consecutive pairs on a 64 x 64 grid.
};

template <typename Image>
SerialStatistics serial_statistics(uint64_t n, const Image& image) {
  constexpr uint64_t kCells = 64;
  SerialStatistics statistics;
  std::vector<double> cells(kCells * kCells);
  const auto pairs = static_cast<double>(n - 1);
  const auto centred = [&](uint64_t x) { return (static_cast<double>(x) + 0.5) / static_cast<double>(n) - 0.5; };
  uint64_t x = image(0);
  for (uint64_t i = 1; i < n; ++i) {
    const uint64_t y = image(i);
    statistics.correlation += 12 * centred(x) * centred(y) / pairs;
    statistics.alternation += (x ^ y) % 2 == 1 ? 1 / pairs : 0;
    ++cells[x * kCells / n * kCells + y * kCells / n];
    x = y;
  }
  const double expected = pairs / static_cast<double>(cells.size());
  for (const double count : cells) statistics.chi_square += (count - expected) * (count - expected) / expected;
  // A permutation always fills the rows and columns of the grid evenly, which removes degrees of freedom.
  statistics.chi_square /= static_cast<double>((kCells - 1) * (kCells - 1));
  return statistics;
}

constexpr uint64_t kPositions = uint64_t{1} << 20;

TEST(Permutation, NeighboursLookIndependent) {
  for (const uint64_t n : {kPositions, kPositions + 1, kPositions - 12345}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const SerialStatistics statistics = serial_statistics(n, Permutation(n, seed, 0, seed));
      EXPECT_LE(std::abs(statistics.correlation), 0.005) << n << " seed " << seed;
      EXPECT_NEAR(statistics.alternation, 0.5, 0.005) << n << " seed " << seed;
      EXPECT_GT(statistics.chi_square, 0.9) << n << " seed " << seed;
      EXPECT_LT(statistics.chi_square, 1.1) << n << " seed " << seed;
    }
  }
}

// This test shows why Permutation also permutes the output of its linear congruential generator.
TEST(Permutation, NeighboursOfABareGeneratorDoNot) {
  uint64_t state = 12345;
  const SerialStatistics bare =
      serial_statistics(kPositions, [&](uint64_t) { return state = (state * 1664525 + 1013904223) % kPositions; });
  EXPECT_NEAR(bare.alternation, 1, 1e-6);
  EXPECT_TRUE(bare.chi_square < 0.9 || bare.chi_square > 1.1) << bare.chi_square;
}

class Randomness : public testing::TestWithParam<uint64_t> {};

// Pairs of consecutive images are spread evenly over a 16 x 16 grid of their high bits, and over one of their low bits.
TEST_P(Randomness, ConsecutivePairsAreSpreadEvenly) {
  const uint64_t n = GetParam();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Permutation permutation(n, seed, 0, 0);
    for (const uint64_t stride : {1u, 2u, 64u, 1024u}) {
      std::vector<double> high(256), low(256);
      for (uint64_t i = 0; i + stride < n && i < 40000; ++i) {
        const uint64_t x = permutation(i), y = permutation(i + stride);
        ++high[(x * 16 / n) * 16 + y * 16 / n];
        ++low[(x % 16) * 16 + y % 16];
      }
      EXPECT_LT(chi_square_deviation(high), 6) << "seed " << seed << " stride " << stride;
      EXPECT_LT(chi_square_deviation(low), 6) << "seed " << seed << " stride " << stride;
    }
  }
}

TEST_P(Randomness, NoSerialCorrelation) {
  const uint64_t n = GetParam();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Permutation permutation(n, seed, 3, 9);
    for (const uint64_t lag : {1u, 2u, 3u, 16u, 1024u}) {
      double correlation = 0;
      const uint64_t count = std::min<uint64_t>(n - lag, 40000);
      for (uint64_t i = 0; i < count; ++i) {
        const double x = static_cast<double>(permutation(i)) / static_cast<double>(n) - 0.5;
        const double y = static_cast<double>(permutation(i + lag)) / static_cast<double>(n) - 0.5;
        correlation += 12 * x * y / static_cast<double>(count);
      }
      EXPECT_LT(std::abs(correlation), 5 / std::sqrt(static_cast<double>(count))) << "seed " << seed << " lag " << lag;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Permutation, Randomness, testing::Values(65536, 50000, 1000003, 1 << 24));

}  // namespace
}  // namespace octavo
