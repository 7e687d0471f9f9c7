#include "core/suggestions.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

using Sizes = std::vector<int64_t>;

TEST(NearSizes, MultiplesBelowAndAbove) {
  EXPECT_EQ(multiples_near(4, 3), (Sizes{3, 6}));
  EXPECT_EQ(multiples_near(2, 3), Sizes{3});
  EXPECT_EQ(multiples_near(17, 8, {.smallest = 17, .largest = 31}), Sizes{24});
  EXPECT_EQ(multiples_near(17, 8, {.smallest = 9, .largest = 23}), Sizes{16});
  EXPECT_EQ(multiples_near(17, 8, {.smallest = 17, .largest = 23}), Sizes{});
  EXPECT_EQ(multiples_near(17, 8, {}, [](int64_t size) { return size % 3 == 0; }), Sizes{24});
}

TEST(NearSizes, DivisorsBelowAndAbove) {
  EXPECT_EQ(divisors_near(5, 32), (Sizes{4, 8}));
  EXPECT_EQ(divisors_near(40, 32), Sizes{32});
  EXPECT_EQ(divisors_near(3, 1), Sizes{1});
  EXPECT_EQ(divisors_near(5, 32, [](int64_t size) { return size < 3 || size > 8; }), (Sizes{2, 16}));
  EXPECT_EQ(divisors_near(5, 32, [](int64_t) { return false; }), Sizes{});
}

TEST(NearSizes, AreNamedInASentence) {
  EXPECT_EQ(would_work({}), "");
  EXPECT_EQ(would_work({3}), "; 3 would work");
  EXPECT_EQ(would_work({3, 6}, " ranks"), "; 3 or 6 ranks would work");
}

TEST(OneOf, SeparatesTheLastByOr) {
  EXPECT_EQ(one_of(std::vector<int64_t>{32, 64}), "32 or 64");
  EXPECT_EQ(one_of(std::vector<int64_t>{32, 64, 128}), "32, 64 or 128");
}

}  // namespace
}  // namespace octavo
