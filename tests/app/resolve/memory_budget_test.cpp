// Tests of the rule that decides whether a run fits into memory. A plan and the planned run use the same rule.
#include "app/resolve/memory_budget.h"

#include <gtest/gtest.h>

#include "core/format.h"

namespace octavo {

namespace {

// Returns the bytes that a run may allocate in its arena.
int64_t room_for_arena(const MeshShape& mesh, const Place& device) {
  const MemoryBudget budget = memory_budget({}, mesh, device);
  const int64_t bytes = budget.available - budget.outside - budget.margin;
  EXPECT_TRUE(budget.fits(bytes));
  EXPECT_FALSE(budget.fits(bytes + 1));
  return bytes;
}

TEST(MemoryBudget, LeavesWhatLibrariesTakeAndAMargin) {
  const Place device{.memory_bytes = 80 * kGiB};
  const int64_t margin = 1536 * kMiB;
  EXPECT_EQ(room_for_arena({}, device), 80 * kGiB - 545 * kMiB - margin);
  EXPECT_EQ(room_for_arena({.replicate = 2}, device), 80 * kGiB - 1695 * kMiB - margin);
  EXPECT_EQ(room_for_arena({.shard = 8}, device), 80 * kGiB - 2945 * kMiB - margin);
  EXPECT_EQ(room_for_arena({.shard = 2, .tensor = 4}, device), 80 * kGiB - 3945 * kMiB - margin);
}

TEST(MemoryBudget, MemoryIsRegisteredWithinANode) {
  const Place four{.ranks_per_node = 4, .memory_bytes = 80 * kGiB};
  const Place eight{.memory_bytes = 80 * kGiB};
  EXPECT_EQ(room_for_arena({.shard = 8}, four) - room_for_arena({.shard = 8}, eight), 1250 * kMiB);
  EXPECT_EQ(room_for_arena({.shard = 4}, four), room_for_arena({.shard = 4}, eight));
}

TEST(MemoryBudget, IsThatOfThePlanForARunAloneOnItsGpu) {
  for (const MeshShape& mesh :
       {MeshShape{}, MeshShape{.shard = 8}, MeshShape{.replicate = 2, .shard = 2, .tensor = 2}}) {
    Place device{.memory_bytes = 80 * kGiB};
    const int64_t planned = room_for_arena(mesh, device);
    device.free_bytes = 80 * kGiB - 400 * kMiB;
    EXPECT_EQ(room_for_arena(mesh, device), planned);
    device.free_bytes = 60 * kGiB;  // Other programs use much of the memory.
    EXPECT_LE(room_for_arena(mesh, device), planned - 17 * kGiB);
  }
}

TEST(MemoryBudget, OfTheCpuIsAShare) {
  const Place planned{.device = Device::kCpu, .memory_bytes = 40 * kGiB};
  EXPECT_EQ(room_for_arena({.shard = 2}, planned), 38 * kGiB);
  const Place running{.device = Device::kCpu, .free_bytes = 20 * kGiB};
  EXPECT_EQ(room_for_arena({.shard = 2}, running), 19 * kGiB);
}

TEST(MemoryBudget, EverythingFitsWhereMemoryIsUnknown) {
  EXPECT_TRUE(memory_budget({}, {.shard = 2}, {}).fits(1000 * kGiB));
  EXPECT_TRUE(memory_budget({}, {}, {.device = Device::kCpu}).fits(1000 * kGiB));
}

}  // namespace

}  // namespace octavo
