#include "parallel/config.h"

#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

TEST(ParallelConfig, DataParallelRanks) {
  EXPECT_EQ(ParallelConfig{}.data_parallel_ranks(1), 1);
  EXPECT_EQ(ParallelConfig{}.data_parallel_ranks(7), 7);
  EXPECT_EQ((ParallelConfig{-1, 2, 3}.data_parallel_ranks(24)),
            8);  // The mesh has 4 shards, 2 replicas and 3 tensor-parallel ranks.
  EXPECT_EQ((ParallelConfig{4, 2, 3}.data_parallel_ranks(24)), 8);
}

TEST(ParallelConfig, MeshShape) {
  const MeshShape shape = ParallelConfig{-1, 2, 3}.mesh_shape(24);
  EXPECT_EQ(shape.replicate, 2);
  EXPECT_EQ(shape.shard, 4);
  EXPECT_EQ(shape.tensor, 3);
  EXPECT_EQ(shape.data(), 8);
  EXPECT_EQ(shape.shards(), 4);
  EXPECT_EQ(shape.ranks(), 24);
}

// Ranks along the context axis share the model state, and they do not read other samples.
TEST(ParallelConfig, MeshShapeWithContext) {
  const MeshShape shape = ParallelConfig{-1, 2, 3, 4}.mesh_shape(48);
  EXPECT_EQ(shape.shard, 2);
  EXPECT_EQ(shape.context, 4);
  EXPECT_EQ(shape.data(), 4);
  EXPECT_EQ(shape.shards(), 8);
  EXPECT_EQ(shape.ranks(), 48);
}

// The number of replicas is computed if the number of shards is given. Otherwise the program chooses it.
TEST(ParallelConfig, ReplicasThatAreNotGiven) {
  EXPECT_TRUE(ParallelConfig{}.chooses_replicas());
  EXPECT_EQ(ParallelConfig{}.mesh_shape(16).replicate, 1);
  EXPECT_EQ(ParallelConfig{}.mesh_shape(16).shard, 16);
  const ParallelConfig given{.data_parallel_shard = 4, .tensor_parallel = 2};
  EXPECT_FALSE(given.chooses_replicas());
  EXPECT_EQ(given.mesh_shape(16).replicate, 2);
  EXPECT_FALSE((ParallelConfig{.data_parallel_replicate = 1}).chooses_replicas());
  expect_error<InputError>([&] { given.mesh_shape(20); },
                           "parallel.data_parallel_shard 4 times parallel.context_parallel 1 times "
                           "parallel.tensor_parallel 2 is 8, which does not divide the 20 ranks");
}

TEST(ParallelConfig, SizesThatDoNotMultiplyToTheRanks) {
  const auto expect_invalid = [](const ParallelConfig& config, const std::string& message) {
    expect_error<InputError>([&] { config.data_parallel_ranks(8); }, message);
  };
  expect_invalid({2, 1, 1}, "is 2, but this run has 8 ranks");
  expect_invalid({-1, 3, 1},
                 "is 3, which does not divide the 8 ranks of this run; 6 or 9 ranks would work, or "
                 "parallel.data_parallel_replicate 2 or 4");
  expect_invalid(
      {-1, 2, 1, 3},
      "parallel.data_parallel_replicate 2 times parallel.context_parallel 3 times parallel.tensor_parallel 1 "
      "is 6, which does not divide the 8 ranks of this run; 6 or 12 ranks would work, or parallel.context_parallel 2 "
      "or 4");
  expect_invalid({-1, 1, 1, 9},
                 "does not divide the 8 ranks of this run; 9 ranks would work, or parallel.context_parallel 8");
  expect_invalid({2, 1, 1, 2}, "is 4, but this run has 8 ranks");
  expect_invalid({-1, 1, 1, 0}, "parallel.context_parallel is 0");
  expect_invalid({0, 1, 1}, "parallel.data_parallel_shard is 0");
  expect_invalid({-2, 1, 1}, "parallel.data_parallel_shard is -2");
  expect_invalid({-1, 0, 1}, "parallel.data_parallel_replicate is 0");
  expect_invalid({-1, 1, -1}, "parallel.tensor_parallel is -1");
}

TEST(ParallelConfig, SuitsTheRanks) {
  EXPECT_TRUE(ParallelConfig{}.suits(7));
  EXPECT_TRUE((ParallelConfig{.tensor_parallel = 2, .context_parallel = 3}.suits(12)));
  EXPECT_FALSE((ParallelConfig{.tensor_parallel = 2, .context_parallel = 3}.suits(8)));
  const ParallelConfig given{.data_parallel_shard = 2, .data_parallel_replicate = 2, .tensor_parallel = 2};
  EXPECT_TRUE(given.suits(8));
  EXPECT_FALSE(given.suits(16));
}

TEST(MeshShape, LoadOfAnAllToAll) {
  EXPECT_EQ((MeshShape{.shard = 8}.all_to_all_load(8)), 1);                // All shards are on one machine.
  EXPECT_EQ((MeshShape{.shard = 16}.all_to_all_load(8)), 8);               // Each machine has eight shards.
  EXPECT_EQ((MeshShape{.shard = 16, .tensor = 2}.all_to_all_load(8)), 4);  // Each machine has four shards.
  EXPECT_EQ((MeshShape{.shard = 16, .tensor = 8}.all_to_all_load(8)), 1);  // Each machine has one shard.
  EXPECT_EQ((MeshShape{.replicate = 4, .shard = 2, .tensor = 4}.all_to_all_load(8)), 1);
  EXPECT_EQ((MeshShape{.shard = 4, .context = 4}.all_to_all_load(8)), 8);
}

}  // namespace
}  // namespace octavo
