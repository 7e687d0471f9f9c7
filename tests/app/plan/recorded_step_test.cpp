// What a training step queues, recorded on a planned stream (core/op_record.h): the model's own forward and backward,
// its collectives and the optimizer, on rank 0 of a mesh that is not there. The predictor is held to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "app/memory/planned_rank.h"
#include "app/plan/machine_files.h"
#include "app/plan/predictor.h"
#include "core/op_record.h"

namespace octavo {

namespace {

constexpr ActivationCheckpointing kKeepAll{.mode = ActivationCheckpointing::Mode::kNone};

Config load_four_layers(int64_t gpus, std::vector<std::string> overrides) {
  overrides.emplace_back("device=cuda");
  overrides.emplace_back("training.micro_batch_size=1");
  overrides.emplace_back("model.num_layers=4");
  Config config = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/llama3_8b_8gpu.yaml", overrides);
  resolve_device(config, Device::kCuda);
  validate(config, gpus, Purpose::kSynthetic);
  return config;
}

// A step behind another one, so that delayed scales come from a history.
class RecordedStep {
 public:
  explicit RecordedStep(const PredictedRun& run)
      : watchdog_(0, RankBoard(), [] {}),
        planned_(run.config, run.mesh, Stream::planned(132, &record_), watchdog_),
        layout_(run.config.model, {.rank = 0, .size = run.mesh.tensor}),
        arena_(Device::kCuda),
        state_({.config = run.config,
                .layout = layout_,
                .local_batch = run.config.training.global_batch_size / run.mesh.data(),
                .sharding = run.sharding,
                .checkpointing = run.checkpointing},
               planned_.rank(), arena_) {
    state_.model.end_step(planned_.rank().world);
    record_.clear();
    training_step(state_, {.number = 2, .lr = 0, .targets = 1}, planned_.rank());
  }

  // The sum over ops that `counts` says are meant.
  template <typename Counts>
  double sum(double Op::*what, const Counts& counts) const {
    double sum = 0;
    for (const OpRecord::Entry& entry : record_.entries()) {
      if (entry.action == OpRecord::Action::kOp && counts(entry)) sum += entry.op.*what;
    }
    return sum;
  }
  double flops(std::string_view name) const {
    return sum(&Op::flops, [&](const OpRecord::Entry& entry) { return name == entry.op.name; });
  }
  double bytes(std::string_view name, std::string_view axis = "") const {
    return sum(&Op::bytes, [&](const OpRecord::Entry& e) { return name == e.op.name && axis == e.op.axis; });
  }
  // Of ops on the compute stream that are bound by memory.
  double moved_bytes() const {
    return sum(&Op::bytes,
               [](const OpRecord::Entry& entry) { return entry.stream == 0 && entry.op.bound == OpBound::kMemory; });
  }
  const OpRecord& record() const { return record_; }

 private:
  OpRecord record_;
  Watchdog watchdog_;
  PlannedRank planned_;
  ParameterLayout layout_;
  Arena arena_;
  TrainingState state_;
};

TEST(RecordedStep, HasTheProductsOfAllMicroBatches) {
  constexpr double kLayers = 4;
  constexpr double kMicroBatches = 3;
  const Config config = load_four_layers(2, {"training.global_batch_size=6"});
  const RecordedStep step({config, config.parallel.mesh_shape(2), {}, kKeepAll});
  const double tokens = kMicroBatches * 8192;
  EXPECT_EQ(step.flops("gate_up"), kLayers * tokens * 2 * 4096 * 28672);
  EXPECT_EQ(step.flops("down_d_w"), kLayers * tokens * 2 * 4096 * 14336);
  EXPECT_EQ(step.flops("lm_head"), tokens * 2 * 4096 * 128256);
}

TEST(RecordedStep, SaysWhatProductsRatesDependOn) {
  const Config config = load_four_layers(1, {"training.global_batch_size=1", "precision.linear=fp8_rowwise"});
  const RecordedStep step({config, config.parallel.mesh_shape(1), {}, kKeepAll});
  const auto& entries = step.record().entries();
  const auto find = [&](std::string_view name) {
    return std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return name == entry.op.name; })->op;
  };
  const Op down = find("down");
  EXPECT_STREQ(down.precision, "fp8_rowwise");
  EXPECT_EQ(down.bound, OpBound::kFp8Product);
  EXPECT_EQ(down.m, 8192);
  EXPECT_EQ(down.n, 4096);
  EXPECT_EQ(down.k, 14336);
  EXPECT_TRUE(down.fast_accumulation);
  EXPECT_FALSE(find("down_d_x").fast_accumulation);
  EXPECT_STREQ(find("lm_head").precision, "bfloat16");
  EXPECT_EQ(find("sdpa_backward").bound, OpBound::kAttentionBackward);
}

TEST(RecordedStep, ScalesOfDelayedRecipesAreKnown) {
  const auto measured = [](const char* recipe) {
    const Config config =
        load_four_layers(1, {std::string("precision.linear=") + recipe, "training.global_batch_size=1"});
    return RecordedStep({config, config.parallel.mesh_shape(1), {}, kKeepAll}).bytes("amax");
  };
  EXPECT_GT(measured("fp8_tensorwise"), 0);
  EXPECT_EQ(measured("fp8_delayed"), 0);
}

TEST(RecordedStep, MovesTokensAndWeights) {
  const Config config =
      load_four_layers(8, {"parallel.tensor_parallel=4", "training.global_batch_size=2", "precision.linear=bfloat16"});
  const RecordedStep step({config, config.parallel.mesh_shape(8), {}, kKeepAll});
  // Forward before qkv and gate_up, backward before down and o, the head's tokens and the embedding's gradient; the
  // statistics of the logits are small.
  const double tokens = 8192.0 * 4096 * 2;
  EXPECT_NEAR(step.bytes("all_gather", "tensor") / tokens, 4 * 4 + 2, 0.2);
  const double block = 4096.0 * (6144 + 4096 + 3 * 14336) / 4;
  const double table = 4096.0 * 128256 / 4;
  EXPECT_NEAR(step.bytes("all_gather", "shard") / (2 * (4 * block + 2 * table)), 1, 1e-3);
  EXPECT_NEAR(step.bytes("reduce_scatter", "shard") / (4 * (4 * block + 2 * table)), 1, 1e-3);
}

// The compute stream waits for what travels beside it.
TEST(RecordedStep, StreamsWaitForEachOther) {
  const Config config = load_four_layers(2, {"training.global_batch_size=2"});
  const RecordedStep step({config, config.parallel.mesh_shape(2), {}, kKeepAll});
  std::map<int64_t, int> signalled;  // by which stream
  size_t waits = 0;
  for (const OpRecord::Entry& entry : step.record().entries()) {
    if (entry.action == OpRecord::Action::kSignal) signalled[entry.signal] = entry.stream;
    if (entry.action != OpRecord::Action::kWait || entry.stream != 0) continue;
    ASSERT_TRUE(signalled.contains(entry.signal));
    waits += signalled[entry.signal] != 0 ? 1 : 0;
  }
  EXPECT_GE(waits, 4u);  // a block's weights each
}

// FLOPs by product, and the bytes of what is bound by memory.
TEST(Predictor, StatesWhatTheModelDoes) {
  const MachineRates machine = find_machine("h200");
  const auto check = [&](int64_t gpus, const std::vector<std::string>& overrides, ActivationCheckpointing::Mode mode,
                         double tolerance) {
    const Config config = load_four_layers(gpus, overrides);
    const PredictedRun run{config, config.parallel.mesh_shape(gpus), {}, {.mode = mode}};
    const RecordedStep step(run);
    double bytes = 0;
    for (const StepCost& cost : predict_step(run, machine, {}).costs) {
      const bool computes = cost.kind == CostKind::kProduct || cost.kind == CostKind::kAttention;
      if (computes) {
        EXPECT_NEAR(step.flops(cost.name) / cost.flops, 1, 1e-9) << cost.name << " " << overrides.back();
      }
      if (cost.kind == CostKind::kMemory || cost.kind == CostKind::kOptimizer) bytes += cost.bytes;
    }
    EXPECT_NEAR(step.moved_bytes() / bytes, 1, tolerance) << overrides.back();
  };
  for (const auto mode : {ActivationCheckpointing::Mode::kNone, ActivationCheckpointing::Mode::kSelective,
                          ActivationCheckpointing::Mode::kFull}) {
    check(2, {"training.global_batch_size=8", "precision.linear=bfloat16"}, mode, 0.1);
    check(2, {"training.global_batch_size=8", "precision.linear=fp8_tensorwise"}, mode, 0.1);
    check(4, {"training.global_batch_size=4", "parallel.tensor_parallel=4"}, mode, 0.15);
  }
}

}  // namespace

}  // namespace octavo
