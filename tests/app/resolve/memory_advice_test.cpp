// Tests of the config changes that are proposed when a run does not fit into memory.
#include "app/resolve/memory_advice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "app/config/config_check.h"
#include "app/resolve/resolve.h"
#include "core/format.h"

namespace octavo {

namespace {

class MemoryAdvice : public testing::Test {
 protected:
  Config load(std::vector<std::string> overrides) {
    overrides.emplace_back("device=cuda");
    Config config = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/llama3_8b_8gpu.yaml", overrides);
    resolve_device(config, Device::kCuda);
    return config;
  }
  static Job job_of(const Config& config, int64_t gpus, int64_t memory_gib) {
    const Place place{.ranks = gpus, .memory_bytes = memory_gib * kGiB};
    return resolve(StageConfig(config), place, {config.parallel.mesh_shape(gpus), ""});
  }
  FittingChange change(const std::vector<std::string>& overrides, int64_t gpus, int64_t memory_gib) {
    return find_fitting_change(job_of(load(overrides), gpus, memory_gib));
  }
  // Returns whether a config with the proposed overrides fits into the memory.
  bool fits_with(std::vector<std::string> overrides, const FittingChange& change, int64_t memory_gib) {
    for (size_t begin = 0; begin < change.overrides.size();) {
      const size_t end = std::min(change.overrides.find(' ', begin), change.overrides.size());
      overrides.push_back(change.overrides.substr(begin, end - begin));
      begin = end + 1;
    }
    const Config config = load(overrides);
    validate(config, change.ranks, Purpose::kSynthetic);
    return job_of(config, change.ranks, memory_gib).memory.fits();
  }
};

TEST_F(MemoryAdvice, OneKeyWhereThatIsEnough) {
  const std::vector<std::string> kept = {"activation_checkpointing.mode=none"};
  const FittingChange micro_batch = change(kept, 8, 80);
  EXPECT_EQ(micro_batch.overrides, "training.micro_batch_size=1");
  EXPECT_EQ(micro_batch.ranks, 8);
  EXPECT_TRUE(fits_with(kept, micro_batch, 80));
  EXPECT_EQ(change({"activation_checkpointing.mode=none", "training.micro_batch_size=1"}, 8, 50).overrides,
            "activation_checkpointing.mode=auto");
}

TEST_F(MemoryAdvice, GradientsReducedPerMicroBatchInsteadOfOnce) {
  const std::vector<std::string> once = {"parallel.accumulate_unsharded=true"};
  const FittingChange found = change(once, 8, 50);
  EXPECT_EQ(found.overrides, "parallel.accumulate_unsharded=false");
  EXPECT_TRUE(fits_with(once, found, 50));
}

TEST_F(MemoryAdvice, WhateverIsFoundFits) {
  const std::vector<std::string> kept = {"activation_checkpointing.mode=none"};
  for (const int64_t memory_gib : {60, 40, 30, 25, 20}) {
    const FittingChange found = change(kept, 8, memory_gib);
    EXPECT_GE(found.ranks, 8) << memory_gib;
    EXPECT_TRUE(fits_with(kept, found, memory_gib)) << found.overrides;
  }
}

TEST_F(MemoryAdvice, MoreRanksWhereKeysAreNotEnough) {
  const FittingChange more = change({}, 1, 80);
  EXPECT_EQ(more.ranks, 4);
  EXPECT_EQ(more.overrides, "");
  EXPECT_EQ(more.words(1), "4 ranks");
  EXPECT_TRUE(fits_with({}, more, 80));
  const FittingChange stated = change({"parallel.data_parallel_shard=1"}, 1, 80);
  EXPECT_EQ(stated.overrides, "parallel.data_parallel_shard=4");
  EXPECT_EQ(stated.words(1), "4 ranks and parallel.data_parallel_shard=4");
  const FittingChange larger = change({"training.global_batch_size=2"}, 1, 80);
  EXPECT_EQ(larger.overrides, "training.global_batch_size=8");
  EXPECT_EQ(larger.ranks, 4);
  EXPECT_TRUE(fits_with({"parallel.data_parallel_shard=1"}, stated, 80));
}

TEST_F(MemoryAdvice, NoneWhereNothingHelps) {
  const FittingChange none = change({}, 8, 4);
  EXPECT_EQ(none.overrides, "");
  EXPECT_EQ(none.ranks, 0);
}

TEST_F(MemoryAdvice, NoSearchForModelsOfAbsurdDepth) {
  const auto ranks = [&](int64_t layers) { return change({fmt::format("model.num_layers={}", layers)}, 8, 80).ranks; };
  EXPECT_GT(ranks(kMaxLayersOfAdvice), 8);
  EXPECT_EQ(ranks(kMaxLayersOfAdvice + 1), 0);
}

TEST_F(MemoryAdvice, TheMessageNamesWhatIsNeededAndWhatThereIs) {
  const Job job = job_of(load({"activation_checkpointing.mode=none"}), 8, 80);
  const MemoryPlan& plan = job.memory;
  const std::string message = unfitting_message(job, "a=b");
  const std::string needed = fmt::format("needs {:.1f} GiB", gib(plan.total_bytes()));
  for (const std::string& part :
       {needed, std::string("1.5 more must stay free, but 80.0 GiB are available"), plan.items.front().name,
        std::string("mode none"), std::string("it would fit with a=b")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

}  // namespace

}  // namespace octavo
