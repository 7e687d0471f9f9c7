// Tests how the program chooses what a run keeps in memory if the config leaves this open.
#include "app/resolve/memory_choice.h"

#include <fmt/ranges.h>

#include "model/architecture/layer_spec.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

class MemoryChoiceTest : public ConfigTest {
 protected:
  static constexpr MeshShape kOneRank = {};
  static constexpr MeshShape kSharded = {.shard = 4};

  Config load_for_gpus(std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"device=cuda", "model.num_layers=10"});
    return load(kTrainable, overrides);
  }

  // Returns the choice for a run with simple memory needs. Gathered weights that are kept take 10, and full gradients
  // 15. Each block takes 8, or 5 with `selective`, or 1 if it is recomputed as a whole. If any block is recomputed as a
  // whole, all blocks together take another 7.
  static std::string chosen(const Config& config, const MeshShape& mesh, double available) {
    const auto layers = static_cast<double>(config.model.num_layers);
    const auto fits = [&](const MemoryChoice& choice) {
      const double weights = choice.reshard_after_forward ? 0 : 10;
      const double gradients = choice.accumulate_unsharded ? 15 : 0;
      double blocks = 0;
      for (const LayerSpec& layer : layer_specs(config.model, config.precision, choice.checkpointing)) {
        constexpr double kBytes[] = {8, 5, 1};
        blocks += kBytes[static_cast<size_t>(layer.recompute)];
      }
      return weights + gradients + blocks + (blocks < 5 * layers ? 7 : 0) <= available;
    };
    const std::vector<MemoryChoice> choices = memory_choices(config, mesh);
    const size_t found = first_fitting(choices, fits);
    return found == choices.size()
               ? "nothing"
               : describe_choice(
                     with_choice({.stated = StageConfig(config), .config = StageConfig(config)}, choices[found]));
  }

  static constexpr const char* kRegathered = ", weights gathered again in backward";
  static constexpr const char* kOnce = ", gradients reduced once per step";
};

TEST_F(MemoryChoiceTest, TheFastestThatFits) {
  const Config config = load_for_gpus({"training.micro_batch_size=1"});
  const std::string regathered = kRegathered;
  const auto expect = [&](double available, const std::string& choice) {
    EXPECT_EQ(chosen(config, kSharded, available), choice) << available;
  };
  expect(105, std::string("none") + kOnce);
  expect(104, "none" + regathered + kOnce);
  expect(94, "none");
  expect(89, "none" + regathered);
  expect(79, std::string("selective") + kOnce);
  expect(74, "selective" + regathered + kOnce);
  expect(64, "selective");
  expect(59, "selective" + regathered);
  expect(49, "block with ratio 0.6, 6 of 10 blocks" + regathered);
  expect(24, "block with ratio 0.9, 9 of 10 blocks" + regathered);
  expect(17, "full" + regathered);
  expect(16, "nothing");
}

TEST_F(MemoryChoiceTest, GradientsAreReducedPerMicroBatchWhereOnceSavesNothing) {
  const auto expect = [&](const std::vector<std::string>& overrides, const MeshShape& mesh, bool once) {
    const Config config = load_for_gpus(overrides);
    EXPECT_EQ(may_accumulate_unsharded(config, mesh), once) << fmt::format("{}", fmt::join(overrides, " "));
    EXPECT_EQ(memory_choices(config, mesh).front().accumulate_unsharded, once);
  };
  expect({"training.micro_batch_size=1"}, kSharded, true);
  expect({"training.micro_batch_size=2"}, kSharded, false);
  expect({"training.micro_batch_size=2"}, {.shard = 2}, true);
  expect({"training.micro_batch_size=1"}, {.replicate = 2, .shard = 4}, false);
  expect({"training.micro_batch_size=1"}, {.replicate = 4}, false);
  expect({"training.micro_batch_size=1"}, {.context = 2}, true);
  expect({"training.micro_batch_size=1"}, {.tensor = 4}, false);
  expect({"training.micro_batch_size=1"}, kOneRank, false);
}

// The choice depends on the free memory, so it must not change the bits of runs that repeat bit for bit.
TEST_F(MemoryChoiceTest, GradientsAreReducedPerMicroBatchWhereOnceWouldChangePromisedBits) {
  const auto once = [&](const char* override_) {
    return memory_choices(load_for_gpus({"training.micro_batch_size=1", override_}), kSharded)
        .front()
        .accumulate_unsharded;
  };
  EXPECT_TRUE(once("training.deterministic=false"));
  EXPECT_FALSE(once("training.deterministic=true"));
  EXPECT_FALSE(once("precision.reduce=bfloat16"));
  const Config on_cpu = load(kTrainable, {"device=cpu", "training.micro_batch_size=1"});
  EXPECT_FALSE(may_accumulate_unsharded(on_cpu, kSharded));
}

TEST_F(MemoryChoiceTest, WhatTheConfigGivesIsNotVaried) {
  EXPECT_EQ(memory_choices(load(kTrainable), kOneRank).size(), 3u);  // The choices are none, selective and full.
  const Config kept = load_for_gpus({"parallel.reshard_after_forward=false", "parallel.accumulate_unsharded=false"});
  EXPECT_EQ(chosen(kept, kSharded, 110), "none");
  EXPECT_EQ(chosen(kept, kSharded, 79), "selective");
  EXPECT_EQ(chosen(kept, kSharded, 27), "full");
  EXPECT_EQ(chosen(kept, kSharded, 26), "nothing");
  const Config once = load_for_gpus({"parallel.accumulate_unsharded=true", "training.deterministic=true"});
  EXPECT_EQ(chosen(once, kSharded, 32), std::string("full") + kRegathered + kOnce);
  EXPECT_EQ(chosen(once, kSharded, 31), "nothing");
  EXPECT_TRUE(memory_choices(once, kOneRank).back().accumulate_unsharded);
  const Config full = load_for_gpus({"activation_checkpointing.mode=full", "training.micro_batch_size=1"});
  EXPECT_EQ(chosen(full, kSharded, 42), std::string("full") + kOnce);
  EXPECT_EQ(chosen(full, kSharded, 41), std::string("full") + kRegathered + kOnce);
  EXPECT_EQ(chosen(full, kSharded, 31), "full");
  EXPECT_EQ(chosen(full, kSharded, 17), std::string("full") + kRegathered);
  EXPECT_EQ(chosen(full, kOneRank, 90), "full");
  EXPECT_EQ(chosen(full, kOneRank, 17), "nothing");
}

}  // namespace
}  // namespace octavo
