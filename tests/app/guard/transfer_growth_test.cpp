#include "app/guard/transfer_growth.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

using Times = std::map<std::string, double>;

// How many of the steps ask for a look.
int looks(TransferGrowth& growth, int steps, double step_ms, const Times& times) {
  int count = 0;
  for (int i = 0; i < steps; ++i) count += growth.judge(step_ms, times) ? 1 : 0;
  return count;
}

TEST(TransferGrowth, ShortTransfersNeedNoLook) {
  TransferGrowth growth;
  EXPECT_EQ(looks(growth, 100, 1000, {{"gather", 100}, {"sum", 90}}), 0);
}

TEST(TransferGrowth, LongOnesAreLookedAtFromTheBeginning) {
  TransferGrowth growth;
  const Times times = {{"gather", 120}, {"sum", 90}};
  EXPECT_EQ(looks(growth, 2, 1000, times), 0);
  EXPECT_EQ(looks(growth, 1, 1000, times), 1);
  EXPECT_EQ(growth.time().kind, "gather");
  EXPECT_EQ(growth.time().ms, 120);
  EXPECT_FALSE(growth.time().before_ms);
  EXPECT_EQ(looks(growth, 3, 1000, times), 0);
  EXPECT_EQ(looks(growth, 1, 1000, times), 1) << "the first look may have been in a bad moment";
  EXPECT_EQ(looks(growth, 1000, 1000, times), 6) << "more and more seldom";
}

TEST(TransferGrowth, WhatGrowsIsLookedAtUntilItsCauseIsKnown) {
  TransferGrowth growth;
  EXPECT_EQ(looks(growth, 10, 1000, {{"gather", 100}, {"sum", 50}}), 0);
  EXPECT_EQ(looks(growth, 1, 2300, {{"gather", 110}, {"sum", 300}}), 0) << "it may pass";
  EXPECT_EQ(looks(growth, 1, 2300, {{"gather", 110}, {"sum", 310}}), 1);
  EXPECT_EQ(growth.time().kind, "sum");
  EXPECT_EQ(growth.time().ms, 310);
  EXPECT_EQ(growth.time().before_ms, 50);
  EXPECT_EQ(looks(growth, 4, 2300, {{"gather", 110}, {"sum", 310}}), 1);
  growth.forget();
  EXPECT_EQ(looks(growth, 100, 2300, {{"gather", 110}, {"sum", 310}}), 0) << "it is as before now";
}

TEST(TransferGrowth, WhatIsLittleOfAStepMayGrow) {
  TransferGrowth growth;
  EXPECT_EQ(looks(growth, 10, 1000, {{"gather", 10}}), 0);
  EXPECT_EQ(looks(growth, 100, 1000, {{"gather", 90}}), 0);
}

TEST(TransferGrowth, NoiseIsLookedAtMoreAndMoreSeldom) {
  TransferGrowth growth;
  looks(growth, 10, 1000, {{"gather", 100}});
  int found = 0;
  for (int i = 0; i < 400; ++i) {
    found += growth.judge(10000, {{"gather", i / 10 % 2 == 0 ? 1900 : 100}}) ? 1 : 0;
  }
  EXPECT_GT(found, 2);
  EXPECT_LT(found, 8);
}

}  // namespace
}  // namespace octavo
