#include "app/resolve/mesh_choice.h"

#include <gtest/gtest.h>

#include "app/config/config_check.h"
#include "core/format.h"

namespace octavo {
namespace {

class MeshChoiceTest : public testing::Test {
 protected:
  MeshChoice choose(std::vector<std::string> overrides, int64_t gpus, int64_t gpus_per_node,
                    int64_t memory_bytes = 80 * kGiB, const std::string& name = "llama3_8b_8gpu.yaml") {
    overrides.insert(overrides.end(), {"device=cuda", fmt::format("training.global_batch_size={}", 2 * gpus)});
    Config config = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/" + name, overrides);
    validate(config, gpus, Purpose::kSynthetic);
    resolve_device(config, Device::kCuda);
    return choose_mesh(config, {.ranks = gpus, .ranks_per_node = gpus_per_node, .memory_bytes = memory_bytes});
  }
  static void expect_mesh(const MeshChoice& found, int64_t replicate, int64_t shard, const std::string& reason) {
    EXPECT_EQ(found.shape.replicate, replicate);
    EXPECT_EQ(found.shape.shard, shard);
    EXPECT_EQ(found.reason.substr(0, reason.size()), reason);
    EXPECT_EQ(found.reason.empty(), reason.empty());
  }
};

TEST_F(MeshChoiceTest, AReplicaOnEachNodeIfItFits) {
  expect_mesh(choose({}, 32, 8), 4, 8, "a replica on each of 4 nodes, because it fits: gathers stay within nodes");
  expect_mesh(choose({}, 16, 4, 140 * kGiB), 4, 4, "a replica on each of 4 nodes");
  expect_mesh(choose({"parallel.tensor_parallel=2"}, 32, 8), 4, 4, "a replica on each of 4 nodes");
  expect_mesh(choose({"parallel.tensor_parallel=2", "parallel.context_parallel=4"}, 32, 8), 4, 1,
              "a replica on each of 4 nodes");
}

TEST_F(MeshChoiceTest, OneReplicaIfMemoryAllowsNoMore) {
  expect_mesh(choose({}, 32, 8, 24 * kGiB), 1, 32,
              "all ranks shard one replica: a replica on each of 4 nodes does not fit: ");
  expect_mesh(choose({}, 64, 8, 80 * kGiB, "llama3_70b_8gpu.yaml"), 1, 64,
              "all ranks shard one replica: a replica on each of 8 nodes does not fit: ");
}

// Searches for a memory size at which replicas would require more recomputation.
TEST_F(MeshChoiceTest, OneReplicaIfMoreWouldBeRecomputed) {
  bool found = false;
  for (int64_t gib = 24; gib < 80 && !found; gib += 4) {
    const MeshChoice choice = choose({}, 64, 4, gib * kGiB);
    if (choice.shape.replicate > 1) break;
    found = choice.reason.starts_with(
        "all ranks shard one replica: a replica on each of 16 nodes would need more recomputation (activation "
        "checkpointing ");
  }
  EXPECT_TRUE(found);
}

// Full gradients are kept only where memory is left, so they do not decide how many replicas there are.
TEST_F(MeshChoiceTest, GradientsReducedOncePerStepChangeNothing) {
  for (const int64_t gib : {20, 24, 32, 48, 80}) {
    const auto with = [&](const char* override_) {
      return choose({"training.micro_batch_size=1", override_}, 32, 8, gib * kGiB);
    };
    const MeshChoice open = with("parallel.accumulate_unsharded=auto");
    const MeshChoice each = with("parallel.accumulate_unsharded=false");
    EXPECT_EQ(open.shape, each.shape) << gib;
    EXPECT_EQ(open.reason, each.reason) << gib;
  }
}

TEST_F(MeshChoiceTest, WhatTheConfigGivesIsTaken) {
  expect_mesh(choose({"parallel.data_parallel_replicate=1"}, 32, 8), 1, 32, "");
  expect_mesh(choose({"parallel.data_parallel_replicate=2"}, 32, 8), 2, 16, "");
  expect_mesh(choose({"parallel.data_parallel_shard=16"}, 32, 8), 2, 16, "");
  expect_mesh(choose({}, 8, 8), 1, 8, "");
}

TEST_F(MeshChoiceTest, NodesWithoutAReplica) {
  const std::string none = "all ranks shard one replica: parallel.tensor_parallel takes all ranks of a node";
  expect_mesh(choose({}, 4, 1, 140 * kGiB), 1, 4, none);
  expect_mesh(choose({"parallel.tensor_parallel=8"}, 32, 8), 1, 4, none);
  expect_mesh(choose({"parallel.tensor_parallel=8"}, 32, 12), 1, 4,
              "all ranks shard one replica: the nodes have different");
  const Config config = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/llama3_8b_8gpu.yaml");
  expect_mesh(choose_mesh(config, {.ranks = 12, .ranks_per_node = 8, .equal_nodes = false}), 1, 12,
              "all ranks shard one replica: the nodes have different numbers of ranks");
}

TEST(EqualNodesTest, HaveAsManyRanksInTheirOrder) {
  EXPECT_TRUE(has_equal_nodes(Machines(std::vector<int>{0, 0, 2, 2})));
  EXPECT_TRUE(has_equal_nodes(Machines(std::vector<int>{0, 1, 2})));
  EXPECT_FALSE(has_equal_nodes(Machines(std::vector<int>{0, 0, 2})));
  EXPECT_FALSE(has_equal_nodes(Machines(std::vector<int>{0, 1, 0, 1})));
}

}  // namespace
}  // namespace octavo
