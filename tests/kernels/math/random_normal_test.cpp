#include "kernels/math/random_normal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/math/random_numbers.h"
#include "tests/kernels/law.h"

namespace octavo::random_normal_test {
namespace {

constexpr uint64_t kKey = 0x0123456789abcdefull;

// Upper tail of the standard normal distribution for z >= 0, and its inverse for p <= 1/2 by Halley's iteration.
double upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }
double upper_quantile(double p) {
  double z = p < 0.4 ? std::sqrt(-2 * std::log(p)) : 0.0;
  for (int i = 0; i < 100; ++i) {
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
    const double newton = (upper_tail(z) - p) / density;
    z += newton / (1 - newton * z / 2);  // Newton's step with Halley's correction.
  }
  return z;
}

struct Math {
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float multiply(float a, float b) { return a * b; }
  static float subtract(float a, float b) { return a - b; }
  static float divide(float a, float b) { return a / b; }
  static float sqrt(float x) { return std::sqrt(x); }
  static float from_integer(uint32_t x) { return static_cast<float>(x); }
};

Array numbers(int64_t n, RandomNormal args) {
  Array out(DType::kFloat32, {n});
  args.out = out;
  args.key = kKey;
  Stream stream = Stream::cpu();
  random_normal(args, stream);
  return out;
}

// Compares with the exact quantile at both ends, on both sides of the change of formula, and at 65,535 places in
// between.
TEST(RandomNumbers, AreTheInverseOfTheDistributionFunction) {
  double worst = 0;
  const auto check = [&](uint64_t high) {
    const auto z = static_cast<double>(standard_normal<Math>(high << 32));
    const double p = (static_cast<double>(high) + 0.5) * 0x1p-33;
    // Near p = 1/2 the subtraction in upper_quantile cancels, so the expected value is the first terms of the series in
    // 1/2 - p.
    const double u = (0.5 - p) * std::sqrt(2 * std::numbers::pi);
    const double expected = u < 1e-3 ? u * (1 + u * u / 6) : upper_quantile(p);
    worst = std::max(worst, std::abs(z / expected - 1));
  };
  constexpr uint64_t kEnd = uint64_t{1} << 32;
  constexpr uint64_t kChange = 0x26666666;  // At p = 0.075 the implementation changes its formula.
  for (uint64_t i = 0; i < 1000; ++i) {
    check(i);
    check(kEnd - 1 - i);
    check(kChange - 500 + i);
  }
  for (uint64_t high = 0; high < kEnd; high += 65537) check(high);
  EXPECT_LT(worst, 5e-7);
  EXPECT_EQ(standard_normal<Math>(1), -standard_normal<Math>(0)) << "the lowest bit is the sign";
}

// The limits are about five standard deviations of each statistic.
TEST(RandomNormalTest, HasTheMomentsAndTailsOfANormalDistribution) {
  constexpr int64_t kCount = int64_t{1} << 22;
  const auto n = static_cast<double>(kCount);
  const Array out = numbers(kCount, {});
  double moments[5] = {};
  double neighbours = 0;
  double rows = 0;
  int64_t beyond[6] = {};
  for (int64_t i = 0; i < kCount; ++i) {
    const double z = out.at(i);
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / n;
    if (i >= 1) neighbours += z * out.at(i - 1) / n;
    if (i >= 4096) rows += z * out.at(i - 4096) / n;
    for (int k = 1; k <= 5; ++k) beyond[k] += std::abs(z) > k ? 1 : 0;
  }
  EXPECT_NEAR(moments[1], 0, 5 / std::sqrt(n));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(rows, 0, 5 / std::sqrt(n));
  for (int k = 1; k <= 5; ++k) {
    const double expected = 2 * upper_tail(k) * n;
    EXPECT_NEAR(static_cast<double>(beyond[k]), expected, 5 * std::sqrt(expected)) << "beyond " << k;
  }
}

// Kolmogorov's distance between the empirical and the normal distribution. For one key in a thousand, sqrt(n) times the
// distance exceeds 1.95.
TEST(RandomNormalTest, IsCloseToTheNormalDistributionEverywhere) {
  constexpr int64_t kCount = int64_t{1} << 20;
  const Array out = numbers(kCount, {});
  Values sorted;
  for (int64_t i = 0; i < kCount; ++i) sorted.push_back(out.at(i));
  std::sort(sorted.begin(), sorted.end());
  double distance = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double below = upper_tail(-sorted[static_cast<size_t>(i)]);
    distance = std::max({distance, std::abs(below - static_cast<double>(i) / kCount),
                         std::abs(below - static_cast<double>(i + 1) / kCount)});
  }
  EXPECT_LT(distance * std::sqrt(static_cast<double>(kCount)), 1.95);
}

// Initial weights are made of these numbers, so a single changed bit would change every run.
TEST(RandomNormalTest, KeepsItsNumbers) {
  const auto bits = [](int64_t index) {
    return std::bit_cast<uint32_t>(static_cast<float>(numbers(1, {.out = {}, .range = {.first_index = index}}).at(0)));
  };
  EXPECT_EQ(bits(0), 1071921441u);
  EXPECT_EQ(bits(1), 1065853637u);
  EXPECT_EQ(bits(int64_t{1} << 31), 1060206848u);
  EXPECT_EQ(bits((int64_t{1} << 40) + 7), 1071011238u);
}

TEST(RandomNormalTest, PartsOfAMatrixAreItsElements) {
  constexpr int64_t kRows = 37, kColumns = 61;
  const Array whole = numbers(kRows * kColumns, {});
  for (const int64_t columns : {1, 7, 60, 61}) {
    const int64_t first_column = (kColumns - columns) / 2;
    for (const int64_t begin : {0, 1, 59, 301}) {
      if (begin >= kRows * columns) continue;
      const int64_t count = kRows * columns - begin;
      const Array part = numbers(
          count, {.out = {},
                  .range = {.first_index = first_column, .begin = begin, .columns = columns, .row_stride = kColumns}});
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = begin + i;
        ASSERT_EQ(part.at(i), whole.at(place / columns * kColumns + first_column + place % columns))
            << columns << " columns from " << begin << ": " << i;
      }
    }
  }
}

TEST(RandomNormalTest, CountsPast32Bits) {
  for (const int64_t base : {(int64_t{1} << 31) - 3, (int64_t{1} << 32) - 3, (int64_t{1} << 33) + 12345}) {
    const Array row = numbers(9, {.out = {}, .range = {.first_index = base}});
    EXPECT_EQ(numbers(9, {.out = {}, .range = {.begin = base}}).bits(), row.bits());
    // The slice is the column with index 1 of a matrix with rows of 3 elements.
    const Array one =
        numbers(1, {.out = {}, .range = {.first_index = 1, .begin = base, .columns = 1, .row_stride = 3}});
    EXPECT_EQ(one.bits(), numbers(1, {.out = {}, .range = {.first_index = 3 * base + 1}}).bits());
    for (int64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(numbers(1, {.out = {}, .range = {.first_index = base + i}}).at(0), row.at(i));
      EXPECT_NE(numbers(1, {.out = {}, .range = {.first_index = (base + i) & 0xffffffff}}).at(0) == row.at(i),
                base + i > 0xffffffff);
    }
  }
}

TEST(RandomNormalTest, ScalesAndShifts) {
  const Array z = numbers(1000, {});
  const Array scaled = numbers(1000, {.out = {}, .mean = 3.0f, .deviation = 0.02f});
  const Array constant = numbers(1000, {.out = {}, .mean = 1.0f, .deviation = 0});
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(scaled.at(i), static_cast<double>(static_cast<float>(3.0 + static_cast<double>(0.02f) * z.at(i))));
    EXPECT_EQ(constant.at(i), 1.0);
  }
  EXPECT_EQ(numbers(0, {}).size(), 0);
}

TEST(RandomNormalTest, DoesNotDependOnThreads) {
  expect_thread_independent([] { return numbers(100'003, {.out = {}, .range = {.columns = 97, .row_stride = 101}}); });
}

TEST(RandomNormalTest, RefusesPartsThatOverlap) {
  expect_error([] { numbers(3, {.out = {}, .range = {.columns = 5, .row_stride = 4}}); },
               "rows of 5 elements that are 4 apart");
  expect_error([] { numbers(3, {.out = {}, .range = {.begin = -1}}); }, "begin is -1");
}

// Random numbers on the GPU equal those on the CPU bit for bit, wherever a slice starts and ends.
class RandomNormalParity : public LawTest {};
INSTANTIATE_GPU(RandomNormalParity, DType::kFloat32);

TEST_P(RandomNormalParity, EverySlice) {
  for (const int64_t n : {1, 2, 3, 4, 5, 255, 1009, 4096, 70001, 5'000'011}) {
    for (const int64_t offset : {0, 1, 2, 3, 5}) {
      for (const int64_t begin : {int64_t{0}, int64_t{13}, (int64_t{1} << 31) - 2, (int64_t{1} << 33) + 1}) {
        for (const int64_t columns : {97, 128, 1000}) {
          SCOPED_TRACE(fmt::format("{} elements at {}, from {}, {} columns", n, offset, begin, columns));
          Array out = array(DType::kFloat32, {n}, offset);
          expect_bits_of_cpu({&out}, [&](auto at, Stream& s) {
            random_normal(
                {.out = at(out),
                 .key = kKey + static_cast<uint64_t>(n),
                 .mean = 0.25f,
                 .deviation = 0.02f,
                 .range = {.first_index = 3 * columns + 1, .begin = begin, .columns = columns, .row_stride = 1000}},
                s);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo::random_normal_test
