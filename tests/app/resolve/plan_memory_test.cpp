#include "app/resolve/plan_memory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "app/config/config_check.h"
#include "app/resolve/resolve.h"
#include "core/error.h"
#include "core/format.h"
#include "kernels/attention/sdpa.h"
#include "kernels/flash_attention/flash_attention.h"

namespace octavo {

namespace {

class PlanMemory : public testing::Test {
 protected:
  static Job job(const std::string& name, std::vector<std::string> overrides, int64_t gpus,
                 int64_t memory_bytes = 140 * kGiB) {
    overrides.emplace_back("device=cuda");
    Config config = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/" + name, overrides);
    validate(config, gpus, Purpose::kSynthetic);
    resolve_device(config, Device::kCuda);
    const Place place{.ranks = gpus, .memory_bytes = memory_bytes};
    return resolve(StageConfig(config), place, {config.parallel.mesh_shape(gpus), ""});
  }
  static MemoryPlan plan(const std::string& name, const std::vector<std::string>& overrides, int64_t gpus,
                         int64_t memory_bytes = 140 * kGiB) {
    return job(name, overrides, gpus, memory_bytes).memory;
  }
  static int64_t bytes_of(const MemoryPlan& plan, const std::string& name) {
    for (const MemoryItem& item : plan.items) {
      if (item.name == name) return item.bytes;
    }
    return 0;
  }
};

// Compares with the memory in use in docs/benchmarks. Those runs used cuDNN's attention, so the difference of the
// workspaces is added.
TEST_F(PlanMemory, IsThatOfMeasuredRuns) {
  const auto expect_gib = [](const MemoryPlan& plan, const SdpaShape& shape, double gib) {
    const int64_t cudnn = sdpa_planned_workspace_bytes(shape, shape.seq_len, false);
    const int64_t more = flash_attends(shape) ? cudnn - flash_workspace_bytes(shape, shape.seq_len) : 0;
    EXPECT_NEAR(static_cast<double>(plan.total_bytes() + more) / kGiB, gib, 0.5);
  };
  const char* small = "llama3_1.8b_1gpu.yaml";
  const SdpaShape of_small{2, 8192, 16, 8, 128}, of_8b{2, 8192, 32, 8, 128}, of_70b{1, 8192, 64, 8, 128};
  for (const auto& [recipe, gib] : {std::pair{"bfloat16", 54.6},
                                    {"fp8_tensorwise", 53.3},
                                    {"fp8_delayed", 53.3},
                                    {"fp8_rowwise", 58.3},
                                    {"fp8_blockwise", 55.9}}) {
    expect_gib(plan(small, {"training.global_batch_size=2", std::string("precision.linear=") + recipe}, 1), of_small,
               gib);
  }
  expect_gib(plan(small, {"training.global_batch_size=4", "precision.linear=fp8_tensorwise"}, 2), of_small, 42.0);
  expect_gib(plan(small, {"training.global_batch_size=4", "precision.linear=bfloat16"}, 2), of_small, 42.8);
  const auto large = [&](std::vector<std::string> overrides) {
    overrides.emplace_back("training.global_batch_size=4");
    return plan("llama3_8b_8gpu.yaml", overrides, 2);
  };
  const std::string regathered = "parallel.reshard_after_forward=true";
  expect_gib(large({regathered, "activation_checkpointing.mode=none"}), of_8b, 123.6);
  expect_gib(large({regathered, "activation_checkpointing.mode=selective"}), of_8b, 119.7);
  expect_gib(large({regathered, "activation_checkpointing.mode=full"}), of_8b, 78.9);
  expect_gib(large({}), of_8b, 133.7);
  expect_gib(large({regathered, "activation_checkpointing.mode=none", "precision.linear=bfloat16"}), of_8b, 129.6);
  const auto half_of_70b = [&](std::vector<std::string> overrides) {
    overrides.emplace_back("training.global_batch_size=2");
    return plan("llama3_70b_8gpu.yaml", overrides, 2);
  };
  expect_gib(half_of_70b({"model.num_layers=18", "activation_checkpointing.mode=full"}), of_70b, 126.7);
  expect_gib(half_of_70b({"model.num_layers=9", "activation_checkpointing.mode=full", regathered}), of_70b, 79.0);
}

TEST_F(PlanMemory, ItemsSayWhatTheyHold) {
  const MemoryPlan p =
      plan("llama3_8b_8gpu.yaml",
           {"parallel.reshard_after_forward=true", "activation_checkpointing.mode=block",
            "activation_checkpointing.ratio=0.5", "optimizer.ema_decay=0.9", "parallel.accumulate_unsharded=false"},
           8);
  const auto expect = [&](const char* name, Contents contents, const std::vector<int64_t>& blocks) {
    const auto item = std::find_if(p.items.begin(), p.items.end(), [&](const auto& i) { return i.name == name; });
    ASSERT_NE(item, p.items.end()) << name;
    EXPECT_EQ(item->contents, contents) << name;
    EXPECT_EQ(item->blocks, blocks) << name;
  };
  std::vector<int64_t> all(32);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> every_second = all;  // The first of every two blocks is recomputed.
  std::erase_if(every_second, [](int64_t block) { return block % 2 == 0; });
  expect("master weights", Contents::kWeights, {});
  expect("gathered blocks", Contents::kGatheredWeights, {0, 1});
  expect("gathered norms", Contents::kGatheredWeights, {});
  expect("gradients", Contents::kGradients, {});
  expect("full gradients of blocks", Contents::kGradients, {0, 1});
  expect("exp_avg", Contents::kOptimizer, {});
  expect("ema", Contents::kOptimizer, {});
  expect("activations h0", Contents::kActivations, all);
  expect("activations gate_up", Contents::kActivations, every_second);
  expect("token batch", Contents::kOther, {});
}

TEST_F(PlanMemory, ItemsAreAllThatIsAllocated) {
  const MemoryPlan p = plan("llama3_8b_8gpu.yaml", {}, 8);
  const int64_t sum = std::accumulate(p.items.begin(), p.items.end(), int64_t{0},
                                      [](int64_t bytes, const MemoryItem& item) { return bytes + item.bytes; });
  EXPECT_EQ(sum, p.arena_bytes);
  const int64_t shard = bytes_of(p, "master weights");
  EXPECT_NEAR(static_cast<double>(shard), 8030261248.0 * 4 / 8, 1e6);
  EXPECT_EQ(bytes_of(p, "exp_avg"), shard);
  EXPECT_EQ(bytes_of(p, "gradients"), shard);
}

TEST_F(PlanMemory, KeepsFullWeightsWhereTheyFit) {
  EXPECT_FALSE(job("llama3_8b_8gpu.yaml", {}, 8).sharding().reshard_after_forward);
  const Job small = job("llama3_8b_8gpu.yaml", {}, 8, 80 * kGiB);
  EXPECT_TRUE(small.sharding().reshard_after_forward);
  EXPECT_EQ(small.config.activation_checkpointing.mode, ActivationCheckpointing::Mode::kNone);
  EXPECT_TRUE(small.memory.fits());
  EXPECT_EQ(job("llama3_8b_8gpu.yaml", {}, 8, 76 * kGiB).config.activation_checkpointing.mode,
            ActivationCheckpointing::Mode::kSelective);
  EXPECT_FALSE(plan("llama3_8b_8gpu.yaml", {"activation_checkpointing.mode=none"}, 8, 76 * kGiB).fits());
}

TEST_F(PlanMemory, KeepsFullGradientsWhereTheyFit) {
  const Job kept = job("llama3_8b_8gpu.yaml", {}, 8);
  EXPECT_TRUE(kept.sharding().accumulate_unsharded);
  // The largest of these gradients are those of the 32 blocks, in float32.
  EXPECT_NEAR(static_cast<double>(bytes_of(kept.memory, "full gradients of blocks")) / kGiB, 26, 0.5);
  const ShardingOptions small = job("llama3_8b_8gpu.yaml", {}, 8, 100 * kGiB).sharding();
  EXPECT_FALSE(small.accumulate_unsharded);
  EXPECT_FALSE(small.reshard_after_forward);
  EXPECT_FALSE(job("llama3_8b_8gpu.yaml", {"training.deterministic=true"}, 8).sharding().accumulate_unsharded);
  EXPECT_FALSE(job("llama3_8b_8gpu.yaml", {"training.global_batch_size=16"}, 8).sharding().accumulate_unsharded);
}

TEST_F(PlanMemory, ThousandsOfRanks) {
  const MemoryPlan p = plan("llama3_8b_8gpu.yaml",
                            {"model.preset=llama3_405b", "training.global_batch_size=2048",
                             "training.micro_batch_size=1", "parallel.tensor_parallel=8"},
                            16384);
  EXPECT_NEAR(static_cast<double>(bytes_of(p, "master weights")), 405.85e9 * 4 / 16384, 1e6);
}

// Some activations have more than 2^31 elements. Compared with a sequence of 1/16 of the tokens, no item is smaller,
// and none is more than 16 times as large.
TEST_F(PlanMemory, SequencesOfAMillionTokens) {
  constexpr int64_t kTokens = int64_t{1} << 20;
  const auto of = [&](int64_t tokens) {
    return plan("llama3_8b_8gpu.yaml",
                {fmt::format("data.seq_len={}", tokens), "training.micro_batch_size=1", "training.global_batch_size=8",
                 "activation_checkpointing.mode=full", "parallel.reshard_after_forward=true"},
                8);
  };
  const MemoryPlan large = of(kTokens);
  EXPECT_EQ(bytes_of(large, "activations h0"), 32 * kTokens * 4096 * 2);
  for (const MemoryItem& item : of(kTokens / 16).items) {
    if (item.bytes < kMiB) continue;  // Items below 1 MiB consist mostly of padding.
    EXPECT_GE(bytes_of(large, item.name), item.bytes) << item.name;
    EXPECT_LE(bytes_of(large, item.name), 16 * item.bytes) << item.name;
  }
}

TEST(PlannedStream, NeedsNoGpuAndRefusesWork) {
  Stream stream = Stream::planned(132);
  EXPECT_TRUE(stream.is_cuda());
  EXPECT_TRUE(stream.is_planned());
  EXPECT_EQ(stream.multiprocessors(), 132);
  EXPECT_TRUE(Stream::beside(stream).is_planned());
  const Event event(stream.device());
  EXPECT_TRUE(event.is_reached());
  int32_t value = 0;
  EXPECT_THROW(stream.copy(&value, &value, sizeof(value)), Error);
  EXPECT_THROW(stream.zero(Tensor(&value, DType::kInt32, {1})), Error);
}

// The workspace holds float32 sums of the gradients of queries and keys, two numbers per row, and semaphores for tiles
// of 64 queries.
TEST(PlannedStream, FlashAttentionNeedsSums) {
  Stream stream = Stream::planned(132);
  for (const int64_t seq_len : {8192, 8191, 1}) {
    const SdpaShape shape{2, seq_len, 32, 8, 128};
    const int64_t rows = 2 * ((seq_len + 63) / 64 * 64), keys = 2 * ((seq_len + 127) / 128 * 128);
    const int64_t sums = 4 * 128 * (rows * 32 + 2 * keys * 8);
    const int64_t bytes = flash_workspace_bytes(shape, seq_len);
    EXPECT_GE(bytes, sums + 2 * 4 * rows * 32) << seq_len;
    EXPECT_LE(bytes, sums + 2 * 4 * rows * 32 + 4 * (rows / 64 * 32 + 2 * keys / 128 * 8) + 8 * 256) << seq_len;
    if (!flash_attends(shape)) continue;
    for (const bool deterministic : {false, true}) {
      stream.set_deterministic(deterministic);
      EXPECT_EQ(sdpa_workspace_bytes(shape, DType::kBFloat16, stream), bytes) << seq_len;
    }
  }
  EXPECT_FALSE(flash_attends({2, 8192, 32, 8, 32}));
  EXPECT_EQ(flash_attends({2, 8192, 32, 32, 128}), flash_attends({2, 8192, 32, 8, 128}));
}

TEST(PlannedStream, DeterministicAttentionOfCudnnNeedsMore) {
  const SdpaShape shape{2, 8192, 32, 8, 128};
  const int64_t bytes = sdpa_planned_workspace_bytes(shape, shape.seq_len, false);
  EXPECT_GE(bytes, int64_t{4} * 2 * 8192 * 32 * 128);
  const auto deterministic = static_cast<double>(sdpa_planned_workspace_bytes(shape, shape.seq_len, true));
  EXPECT_GE(deterministic, 8.4e9);  // cuDNN reported 8.4 GB.
  EXPECT_LE(deterministic, 1.1 * 8.4e9);
  constexpr double kOfSmallHeads = 4295229696;  // Measured with 4,096 queries and 32,768 keys.
  const auto small = static_cast<double>(sdpa_planned_workspace_bytes({1, 4096, 16, 16, 64}, 32768, true));
  EXPECT_GE(small, kOfSmallHeads);
  EXPECT_LE(small, 1.01 * kOfSmallHeads);
}

// The workspace of FlashAttention within documents holds the same sums, with up to one more tile for each of 32
// documents.
TEST(PlannedStream, AttentionWithinDocumentsNeedsSums) {
  Stream stream = Stream::planned(132);
  for (const int64_t heads : {16, 32}) {
    const SdpaShape shape{2, 8192, heads, 8, 128};
    if (!flash_attends(shape)) continue;
    const int64_t rows = 2 * 8192 + 32 * 64, keys = 2 * 8192 + 32 * 128;
    const int64_t sums = 4 * 128 * (rows * heads + 2 * keys * 8);
    const int64_t bytes = sdpa_workspace_bytes(shape, DType::kBFloat16, stream, true);
    EXPECT_GE(bytes, sums + 2 * 4 * rows * heads);
    EXPECT_LE(static_cast<double>(bytes), 1.01 * static_cast<double>(sums + 2 * 4 * rows * heads));
  }
}

// The two chunks of a rank take turns. The workspace holds the sums of the queries of one of them and of all keys of
// the sequence, and the gradients of half of the keys. It is equal on every rank of the sequence.
TEST(PlannedStream, SharedSequencesWithinDocumentsNeedSums) {
  Stream stream = Stream::planned(132);
  const SdpaShape shape{2, 16384, 32, 8, 128, {.rank = 0, .size = 4}};
  if (!flash_attends(shape)) GTEST_SKIP() << "needs FlashAttention";
  const int64_t rows = 8192 + 32 * 64, keys = 65536 + 32 * 128;
  const int64_t needed =
      4 * 128 * (rows * 32 + 2 * keys * 8) + 2 * 4 * rows * 32 + int64_t{32768} * 2 * shape.kv_width();
  const int64_t bytes = sdpa_workspace_bytes(shape, DType::kBFloat16, stream, true);
  EXPECT_GE(bytes, needed);
  EXPECT_LE(static_cast<double>(bytes), 1.01 * static_cast<double>(needed));
  for (int64_t rank = 1; rank < 4; ++rank) {
    SdpaShape other = shape;
    other.context.rank = rank;
    EXPECT_EQ(sdpa_workspace_bytes(other, DType::kBFloat16, stream, true), bytes);
  }
}

TEST(PlannedCommunicator, SaysItsSizeAndRefusesWork) {
  ProcessGroup group;
  const auto shard = std::make_unique<Communicator>(group.watchdog(), "shard", 3, 16);
  EXPECT_EQ(shard->rank(), 3);
  EXPECT_EQ(shard->size(), 16);
  Stream stream = Stream::cpu();
  float value = 1;
  EXPECT_THROW(shard->all_reduce_sum(Tensor(&value, DType::kFloat32, {1}), stream), Error);
}

}  // namespace

}  // namespace octavo
