// Tests of detecting that a process was suspended. A thread that wakes up every 100 ms notices the gap.
#include "app/process/signals.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(SuspensionClockTest, SeesASuspensionForASecond) {
  SuspensionClock clock(1000, 0);
  EXPECT_FALSE(clock.tick(1100, 0));
  EXPECT_TRUE(clock.tick(4100, 0)) << "3 s without a tick";
  EXPECT_TRUE(clock.tick(4900, 700)) << "the same event";
  EXPECT_FALSE(clock.tick(5200, 900));
}

TEST(SuspensionClockTest, DoesNotCountTimeSpentWaitingForACore) {
  SuspensionClock clock(1000, 40);
  EXPECT_FALSE(clock.tick(4000, 40 + 2900)) << "the machine was busy";
  EXPECT_TRUE(clock.tick(9000, 2940 + 2000)) << "the process was suspended, and the machine is busy";
}

TEST(SuspensionClockTest, CountsFromTheBeginning) {
  SuspensionClock clock(50, 0);
  EXPECT_FALSE(clock.tick(150, 0)) << "no suspension was seen yet, however young the machine's clock is";
}

}  // namespace
}  // namespace octavo
