#include "app/log/data_report.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(DataReport, AnEpochBeginsWithItsFirstToken) {
  EXPECT_EQ(begun_epoch(0, 0.5), std::nullopt) << "the first epoch is no event";
  EXPECT_EQ(begun_epoch(0.5, 1), std::nullopt) << "the step ends with the epoch";
  EXPECT_EQ(begun_epoch(1, 1.5), 2);
  EXPECT_EQ(begun_epoch(0.5, 1.5), 2);
  EXPECT_EQ(begun_epoch(1.5, 1.6), std::nullopt);
  EXPECT_EQ(begun_epoch(0, 2.5), 3) << "the last of several";
  // One epoch per step: epoch 5 begins with step 5.
  for (int step = 2; step < 6; ++step) EXPECT_EQ(begun_epoch(step - 1, step), step);
}

}  // namespace
}  // namespace octavo
