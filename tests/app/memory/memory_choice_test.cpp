// Tests how the program chooses what a run keeps in memory if the config leaves this open.
#include "app/memory/memory_choice.h"

#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

class MemoryChoiceTest : public ConfigTest {
 protected:
  // Returns the choice for a run with simple memory needs. Gathered weights that are kept take 10. Each block takes 8,
  // or 5 with `selective`, or 1 if it is recomputed as a whole. If any block is recomputed as a whole, all blocks
  // together take another 7.
  static std::string chosen(const Config& config, bool sharded, double available) {
    const auto layers = static_cast<double>(config.model.num_layers);
    const auto fits = [&](const MemoryChoice& choice) {
      const double weights = choice.reshard_after_forward ? 0 : 10;
      double blocks = 0;
      for (int64_t layer = 0; layer < config.model.num_layers; ++layer) {
        constexpr double kBytes[] = {8, 5, 1};
        blocks += kBytes[static_cast<size_t>(recompute_of(choice.checkpointing, layer))];
      }
      return weights + blocks + (blocks < 5 * layers ? 7 : 0) <= available;
    };
    const std::vector<MemoryChoice> choices = memory_choices(config, sharded);
    const size_t found = first_fitting(choices, fits);
    return found == choices.size() ? "nothing" : describe(choices[found], config.model.num_layers);
  }
};

TEST_F(MemoryChoiceTest, TheCheapestThatFits) {
  const Config config = load(kTrainable, {"model.num_layers=10"});
  const std::string regathered = ", weights gathered again in backward";
  EXPECT_EQ(chosen(config, true, 90), "none");
  EXPECT_EQ(chosen(config, true, 89), "none" + regathered);
  EXPECT_EQ(chosen(config, true, 79), "selective");
  EXPECT_EQ(chosen(config, true, 59), "selective" + regathered);
  EXPECT_EQ(chosen(config, true, 49), "block with ratio 0.6, 6 of 10 blocks" + regathered);
  EXPECT_EQ(chosen(config, true, 24), "block with ratio 0.9, 9 of 10 blocks" + regathered);
  EXPECT_EQ(chosen(config, true, 17), "full" + regathered);
  EXPECT_EQ(chosen(config, true, 16), "nothing");
}

TEST_F(MemoryChoiceTest, WhatTheConfigGivesIsNotVaried) {
  EXPECT_EQ(memory_choices(load(kTrainable), false).size(), 3u);  // The choices are none, selective and full.
  const Config kept = load(kTrainable, {"parallel.reshard_after_forward=false", "model.num_layers=10"});
  EXPECT_EQ(chosen(kept, true, 79), "selective");
  EXPECT_EQ(chosen(kept, true, 27), "full");
  EXPECT_EQ(chosen(kept, true, 26), "nothing");
  const Config full = load(kTrainable, {"activation_checkpointing.mode=full", "model.num_layers=10"});
  EXPECT_EQ(chosen(full, true, 90), "full");
  EXPECT_EQ(chosen(full, true, 17), "full, weights gathered again in backward");
  EXPECT_EQ(chosen(full, false, 90), "full");
  EXPECT_EQ(chosen(full, false, 17), "nothing");
}

}  // namespace
}  // namespace octavo
