#include "parallel/ranks/machines.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace octavo {
namespace {

TEST(MachinesTest, AreNumberedByTheirLowestRanks) {
  const Machines machines(std::vector<int>{0, 0, 7, 7, 0, 3});
  EXPECT_EQ(machines.count(), 3);
  EXPECT_EQ(machines.of(4), 0);
  EXPECT_EQ(machines.of(5), 2);
  EXPECT_EQ(machines.ranks(0), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(machines.first_rank(1), 2);
}

TEST(MachinesTest, OneMachineKeepsItsOwn) {
  const Machines machines(std::vector<int>{0, 0, 0});
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(machines.keeper(rank), rank);
    EXPECT_TRUE(machines.kept_by(rank).empty());
  }
}

// For any distribution of ranks over machines, another machine keeps a replica of every rank, and the keeping rank
// knows whose replica it has.
TEST(MachinesTest, EveryRankIsKeptByAnotherMachine) {
  const std::vector<std::vector<int>> worlds = {
      {0, 1}, {0, 0, 1}, {0, 1, 1, 1}, {0, 0, 2, 3, 3, 3, 3, 8}, {0, 1, 0, 1, 0, 2, 2}};
  for (const std::vector<int>& world : worlds) {
    const Machines machines(world);
    size_t kept = 0;
    for (int rank = 0; rank < static_cast<int>(world.size()); ++rank) {
      const int keeper = machines.keeper(rank);
      EXPECT_NE(machines.of(keeper), machines.of(rank));
      EXPECT_EQ(machines.of(keeper), (machines.of(rank) + 1) % machines.count());
      const std::vector<int> theirs = machines.kept_by(keeper);
      EXPECT_EQ(std::count(theirs.begin(), theirs.end(), rank), 1);
      kept += machines.kept_by(rank).size();
    }
    EXPECT_EQ(kept, world.size());
  }
}

}  // namespace
}  // namespace octavo
