#include "core/median.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(Median, IsTheMiddleOne) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
}

TEST(Median, OfAnEvenNumberIsBetweenTheTwoInTheMiddle) { EXPECT_EQ(median({9, 1, 2, 4}), 3); }

}  // namespace
}  // namespace octavo
