#include "kernels/math/cpu_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace octavo::cpu {
namespace {

// Tests every 509th float from -87.3 to 88.3.
TEST(ExpFast, WithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (const float limit : {-87.3f, 88.3f}) {
    const uint32_t sign = std::bit_cast<uint32_t>(limit) & 0x80000000u;
    for (uint32_t bits = 0; bits <= (std::bit_cast<uint32_t>(limit) ^ sign); bits += 509) {
      const float x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(static_cast<double>(x));
      const auto nearest = static_cast<float>(exact);
      const float next = std::nextafter(nearest, std::numeric_limits<float>::infinity());
      const double unit = static_cast<double>(next) - static_cast<double>(nearest);
      worst = std::max(worst, std::abs(static_cast<double>(exp_fast(x)) - exact) / unit);
    }
  }
  EXPECT_LE(worst, 2.0);
}

TEST(ExpFast, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_fast(0.0f), 1.0f);
  EXPECT_EQ(exp_fast(-0.0f), 1.0f);
  // If x is very negative, the result stays near 2^-126 and never becomes zero or negative.
  for (const float x : {-87.4f, -100.0f, -1e30f, -kInfinity}) {
    EXPECT_GE(exp_fast(x), 0x1p-126f) << x;
    EXPECT_LE(exp_fast(x), 1.05f * 0x1p-126f) << x;
  }
  for (const float x : {88.4f, 100.0f, 1e30f, kInfinity}) EXPECT_GT(exp_fast(x), 2e38f) << x;
  EXPECT_TRUE(std::isnan(exp_fast(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Sigmoid, AgainstItsDefinition) {
  for (float x = -80; x < 80; x += 0.37f) {
    const double exact = 1 / (1 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(static_cast<double>(sigmoid(x)), exact, 4e-7 * exact) << x;
  }
  EXPECT_EQ(sigmoid(1e30f), 1.0f);
  EXPECT_LT(sigmoid(-1e30f), 1e-37f);
}

}  // namespace
}  // namespace octavo::cpu
