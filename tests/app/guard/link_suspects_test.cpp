#include "app/guard/link_suspects.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

const SlowLinks kOne{.machine = 1, .sends = true};
const SlowLinks kOther{.machine = 2, .receives = true};

TEST(LinkSuspects, WhatIsFoundAgainIsSlow) {
  LinkSuspects suspects;
  EXPECT_TRUE(suspects.judge({kOne}).empty());
  EXPECT_TRUE(suspects.wants_look());
  const std::vector<SlowLinks> slow = suspects.judge({kOther, kOne});
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_TRUE(slow[0].same_place(kOne));
  EXPECT_TRUE(suspects.wants_look()) << "for the other";
  EXPECT_EQ(suspects.judge({kOther}).size(), 1U);
  EXPECT_FALSE(suspects.wants_look());
}

TEST(LinkSuspects, ABadLookInBetweenDoesNotHideIt) {
  LinkSuspects suspects;
  EXPECT_TRUE(suspects.judge({kOne}).empty());
  EXPECT_TRUE(suspects.judge({}).empty());
  EXPECT_TRUE(suspects.judge({kOther}).empty());
  EXPECT_EQ(suspects.judge({kOne}).size(), 1U);
}

TEST(LinkSuspects, WhatIsNotFoundAgainIsLetGo) {
  LinkSuspects suspects;
  EXPECT_TRUE(suspects.judge({kOne}).empty());
  int looks = 0;
  for (; suspects.wants_look(); ++looks) EXPECT_TRUE(suspects.judge({}).empty());
  EXPECT_EQ(looks, 4);
  EXPECT_TRUE(suspects.judge({kOne}).empty()) << "much later, it is new";
}

TEST(LinkSuspects, ItIsSaidOnce) {
  LinkSuspects suspects;
  suspects.judge({kOne});
  EXPECT_EQ(suspects.judge({kOne}).size(), 1U);
  for (int look = 0; look < 5; ++look) EXPECT_TRUE(suspects.judge({kOne}).empty());
  EXPECT_FALSE(suspects.wants_look());
}

}  // namespace
}  // namespace octavo
