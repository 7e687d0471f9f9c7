// Tests of a training step that is recorded on a dry-run stream (core/op_record.h): forward, backward, collectives and
// optimizer of rank 0 of an imaginary mesh, and the predictor's estimate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "app/predict/predictor.h"
#include "app/predict/step_clock.h"
#include "tests/app/plan/plan_fixture.h"
#include "tests/model/uneven_layers.h"

namespace octavo::recorded_step_test {

namespace {

Config load_four_layers(int64_t gpus, const std::string& overrides) {
  return load_for_gpus("llama3_8b_8gpu.yaml", overrides + " training.micro_batch_size=1 model.num_layers=4", gpus);
}

RecordedStep record(const Config& config, int64_t gpus) { return record_step(job_on(config, gpus)); }

// Sums a field over the entries of all ops with this name and axis. A micro-batch that is recorded for several counts
// once.
double sum_of(const RecordedStep& step, double Op::*what, std::string_view name, std::string_view axis = "") {
  double sum = 0;
  for (const OpRecord::Entry& entry : step.entries) {
    if (entry.action != OpRecord::Action::kOp) continue;
    const RecordedStep::StepOp& op = step.ops[entry.index];
    if (name == op.op.name && axis == op.axis) sum += op.op.*what;
  }
  return sum;
}

TEST(RecordedStep, HasTheMatmulsOfAllMicroBatches) {
  constexpr double kLayers = 4;
  constexpr double kMicroBatches = 3;
  const Config config = load_four_layers(2, "training.global_batch_size=6");
  const RecordedStep step = record(config, 2);
  const double tokens = kMicroBatches * 8192;
  EXPECT_EQ(sum_of(step, &Op::flops, "gate_up"), kLayers * tokens * 2 * 4096 * 28672);
  EXPECT_EQ(sum_of(step, &Op::flops, "down_d_w"), kLayers * tokens * 2 * 4096 * 14336);
  EXPECT_EQ(sum_of(step, &Op::flops, "lm_head"), tokens * 2 * 4096 * 128256);
}

// The terms of copies of kv heads are collected and added in rank order (FsdpUnit::in_rank_order).
TEST(RecordedStep, CollectsTheTermsOfBlocksWithCopiesOfKvHeads) {
  for (const int64_t kv_heads : {6, 3}) {
    const Config config =
        load_four_layers(8, fmt::format("training.global_batch_size=8 precision.linear=bfloat16 model.hidden_size=384 "
                                        "model.num_heads=6 model.num_kv_heads={} parallel.tensor_parallel=2 "
                                        "model.tie_word_embeddings=true",
                                        kv_heads));
    const RecordedStep step = record(config, 8);
    const bool collects = sum_of(step, &Op::bytes, "all_to_all", "shard") > 0;
    EXPECT_EQ(collects, kv_heads == 3);
    EXPECT_EQ(sum_of(step, &Op::bytes, "reduce_scatter", "shard") > 0, true) << "of the head";
  }
}

// Returns the FLOPs of each kind of op with this bound, times a factor.
std::set<int64_t> kinds_of(const RecordedStep& step, OpBound bound, double factor) {
  std::set<int64_t> flops;
  for (const RecordedStep::StepOp& op : step.ops) {
    if (op.op.bound == bound) flops.insert(std::llround(op.op.flops * factor));
  }
  return flops;
}

// Utilization and the FLOPs by part are formulas, and the record has the attention of each layer. With A tokens to
// attend to, a token costs 12 A FLOPs per layer and element of all heads in utilization. Its backward costs 5 (2 A - 1)
// in the record, and its forward 2 (2 A - 1).
TEST(RecordedStep, HasTheAttentionOfAllLayers) {
  constexpr double kTokens = 8192;
  for (const UnevenLayers& uneven : kUnevenLayers) {
    for (const int64_t document_length : {0, 700}) {
      const bool has_documents = document_length > 0;
      Config config =
          load_four_layers(1, fmt::format("training.global_batch_size=1 data.document_mask={}", has_documents));
      ActivationCheckpointing checkpointing{.mode = ActivationCheckpointing::Mode::kNone};
      uneven.change(config.model, config.precision, checkpointing);
      const ModelConfig& model = config.model;
      const Job job = job_on(config, 1, {}, checkpointing);
      const RecordedStep step = record_step(job, document_length);
      const double recorded = sum_of(step, &Op::flops, "sdpa_backward") / kTokens;
      EXPECT_EQ(kinds_of(step, OpBound::kAttentionForward, 5), kinds_of(step, OpBound::kAttentionBackward, 2))
          << uneven.property << document_length;
      const double elements = static_cast<double>(model.num_layers * model.attention_width());
      const ModelFlops flops = model_flops(model, config.precision, 8192, attended_tokens(8192, document_length));
      const double attention = 12 * elements * kTokens - (flops.palm - flops.causal);
      EXPECT_NEAR((attention * 10 / 12 - 5 * elements) / recorded, 1, 1e-9) << uneven.property << document_length;
      const StepPrediction p = predict_step(job, find_machine("h200"), {}, document_length);
      EXPECT_NEAR(p.use.mfu_causal / p.use.mfu, flops.causal / flops.palm, 1e-9) << uneven.property << document_length;
      for (const auto& [part, flops_of_part] : flops_by_part(model, 8192)) {
        if (part != "attention" || has_documents) continue;
        EXPECT_NEAR(flops_of_part * 5 / 7 / recorded, 1, 1e-9) << uneven.property;
      }
    }
  }
}

TEST(RecordedStep, ItsRangesFollowEachOtherOnTheClock) {
  const Config config = load_four_layers(2, "training.global_batch_size=10");
  const MachineRates machine = find_machine("h100");
  const StepTimeline timeline = step_timeline(job_on(config, 2), machine, {}, 0);
  EXPECT_EQ(timeline.left_out, 2);
  std::map<std::string, int> count;
  double begin_s = 0;
  for (const StepClock::TimedRange& range : timeline.ranges) {
    ++count[range.name];
    EXPECT_GE(range.begin_s, begin_s) << range.name;
    EXPECT_GT(range.end_s, range.begin_s) << range.name;
    begin_s = range.begin_s;
  }
  for (const char* part : {"micro-batch", "forward", "head", "backward"})
    EXPECT_EQ(count[part], kFirstMiddleLast) << part;
  for (const char* block : {"block 0", "block 3"}) EXPECT_EQ(count[block], 2 * kFirstMiddleLast) << block;
  EXPECT_EQ(timeline.ranges.back().name, "optimizer");
}

TEST(RecordedStep, RecordsWhatMatmulRatesDependOn) {
  const Config config = load_four_layers(1, "training.global_batch_size=1 precision.linear=fp8_rowwise");
  const RecordedStep step = record(config, 1);
  const auto find = [&](std::string_view name) {
    return std::find_if(step.ops.begin(), step.ops.end(), [&](const auto& op) { return name == op.op.name; })->op;
  };
  const Op down = find("down");
  EXPECT_STREQ(down.precision, "fp8_rowwise");
  EXPECT_EQ(down.bound, OpBound::kFp8Matmul);
  EXPECT_EQ(down.m, 8192);
  EXPECT_EQ(down.n, 4096);
  EXPECT_EQ(down.k, 14336);
  EXPECT_TRUE(down.fast_accumulation);
  EXPECT_FALSE(find("down_d_x").fast_accumulation);
  EXPECT_STREQ(find("lm_head").precision, "bfloat16");
  EXPECT_EQ(find("sdpa_backward").bound, OpBound::kAttentionBackward);
}

// The format of the linears makes no difference.
TEST(RecordedStep, HasTheHeadsMatmulsInFp8) {
  for (const auto& [linear, accumulation] :
       {std::pair{"bfloat16", "forward"}, {"fp8_rowwise", "forward"}, {"fp8_rowwise", "all"}}) {
    for (const LmHeadTraits& lm_head : kLmHeads) {
      const Config config =
          load_four_layers(2, fmt::format("training.global_batch_size=2 precision.linear={} precision.lm_head={} "
                                          "precision.fast_accumulation={}",
                                          linear, lm_head.name, accumulation));
      const RecordedStep step = record(config, 2);
      const auto expect = [&](std::string_view name, bool fp8, bool fast) {
        const auto found =
            std::find_if(step.ops.begin(), step.ops.end(), [&](const auto& op) { return name == op.op.name; });
        ASSERT_NE(found, step.ops.end()) << name;
        EXPECT_STREQ(found->op.precision, fp8 ? "fp8_tensorwise" : "bfloat16") << name;
        EXPECT_EQ(found->op.bound, fp8 ? OpBound::kFp8Matmul : OpBound::kMatmul) << name;
        EXPECT_EQ(found->op.fast_accumulation, fp8 && fast) << name;
        EXPECT_EQ(sum_of(step, &Op::flops, name), 8192.0 * 2 * 4096 * 128256) << name;
      };
      expect("lm_head", lm_head.logits, true);
      expect("lm_head_d_w", lm_head.gradients, accumulation == std::string_view("all"));
      expect("lm_head_d_x", lm_head.gradients, false);
    }
  }
}

TEST(RecordedStep, ScalesOfDelayedRecipesAreKnown) {
  const auto measured = [](const char* recipe) {
    const Config config = load_four_layers(1, fmt::format("precision.linear={} training.global_batch_size=1", recipe));
    return sum_of(record(config, 1), &Op::bytes, "amax");
  };
  EXPECT_GT(measured("fp8_tensorwise"), 0);
  EXPECT_EQ(measured("fp8_delayed"), 0);
}

TEST(RecordedStep, MovesTokensAndWeights) {
  const Config config =
      load_four_layers(8, "parallel.tensor_parallel=4 training.global_batch_size=2 precision.linear=bfloat16");
  const RecordedStep step = record(config, 8);
  // Forward gathers tokens before qkv and gate_up, backward before down and o. The head's tokens and the embedding's
  // gradient are gathered too. The statistics of the logits are small.
  const double tokens = 8192.0 * 4096 * 2;
  EXPECT_NEAR(sum_of(step, &Op::bytes, "all_gather", "tensor") / tokens, 4 * 4 + 2, 0.2);
  const double block = 4096.0 * (6144 + 4096 + 3 * 14336) / 4;
  const double table = 4096.0 * 128256 / 4;
  EXPECT_NEAR(sum_of(step, &Op::bytes, "all_gather", "shard") / (2 * (4 * block + 2 * table)), 1, 1e-3);
  EXPECT_NEAR(sum_of(step, &Op::bytes, "reduce_scatter", "shard") / (4 * (4 * block + table)), 1, 1e-3);
  // The embedding's gradient is exchanged as the gradients of tokens, and then as a slice of the table.
  EXPECT_EQ(sum_of(step, &Op::bytes, "all_to_all", "shard"), tokens + 4 * table / 2);
}

// Some collectives move data of all shards, such as the gradients of the embedding's tokens. They are recorded for the
// number of shards that the mesh has.
TEST(Predictor, ExchangesTheTokensOfAllShards) {
  const MachineRates machine = find_machine("h200");
  Predictor predictor(machine, {}, 0);
  for (const int64_t gpus : {2, 4, 8}) {
    const Config config = load_four_layers(gpus, fmt::format("training.global_batch_size={}", gpus));
    const Job job = job_on(config, gpus);
    EXPECT_TRUE(depends_on_shards(job));
    const StepPrediction p = predictor.predict(job);
    const auto found = std::find_if(p.costs.begin(), p.costs.end(),
                                    [](const StepCost& cost) { return cost.name == "all_to_all, shard axis"; });
    ASSERT_NE(found, p.costs.end());
    EXPECT_EQ(found->bytes, 8192.0 * 4096 * 2 + 4 * 4096.0 * 128256 / static_cast<double>(gpus)) << gpus;
    EXPECT_EQ(p.step_s, predict_step(job, machine, {}).step_s);
  }
  // Between machines with eight ranks each, all of which are shards, moving the whole table needs fewer bytes.
  Config config = load_four_layers(16, "training.global_batch_size=32");
  config.training.micro_batch_size = 2;
  Job job = job_on(config, 16);
  EXPECT_FALSE(depends_on_shards(job));
  job.place.ranks_per_node = 16;
  EXPECT_TRUE(depends_on_shards(job));
}

// The compute stream waits for the transfers on the other streams.
TEST(RecordedStep, StreamsWaitForEachOther) {
  const Config config = load_four_layers(2, "training.global_batch_size=2");
  const RecordedStep step = record(config, 2);
  std::map<size_t, int> signalled;  // Stream that signals each event.
  size_t waits = 0;
  for (const OpRecord::Entry& entry : step.entries) {
    if (entry.action == OpRecord::Action::kSignal) signalled[entry.index] = entry.stream;
    if (entry.action != OpRecord::Action::kWait || entry.stream != 0) continue;
    ASSERT_TRUE(signalled.contains(entry.index));
    waits += signalled[entry.index] != 0 ? 1 : 0;
  }
  EXPECT_GE(waits, 4u);  // The compute stream waits at least for the weights of each block.
}

// Only one of the micro-batches between the first and the last is recorded, so the matmuls of three recorded
// micro-batches stand for those of five.
TEST(Predictor, CountsAllMicroBatches) {
  const MachineRates machine = find_machine("h200");
  for (const int64_t micro_batches : {1, 2, 3, 5}) {
    const Config config = load_four_layers(2, fmt::format("training.global_batch_size={}", 2 * micro_batches));
    const StepPrediction p = predict_step(job_on(config, 2), machine, {});
    const double tokens = static_cast<double>(micro_batches) * 8192;
    const auto gate_up =
        std::find_if(p.costs.begin(), p.costs.end(), [](const StepCost& cost) { return cost.name == "gate_up"; });
    ASSERT_NE(gate_up, p.costs.end());
    EXPECT_EQ(gate_up->flops, 4 * tokens * 2 * 4096 * 28672) << micro_batches;
  }
}

// The recorded step has the shards of one node, and the prediction is for any number of shards.
TEST(Predictor, SharesTheOptimizerAmongShards) {
  const MachineRates machine = find_machine("h200");
  Predictor predictor(machine, {}, 0);
  for (const int64_t gpus : {2, 8, 64}) {
    const Config config = load_four_layers(gpus, fmt::format("training.global_batch_size={}", gpus));
    const StepPrediction p = predictor.predict(job_on(config, gpus));
    double bytes = 0;
    for (const StepCost& cost : p.costs) bytes += cost.name == "adamw" ? cost.bytes : 0;
    // The optimizer reads the gradient, reads and writes the master weights and two moments in float32, and writes the
    // bfloat16 tables.
    const double tables = 2 * 4096.0 * 128256;
    const double blocks = 4 * 4096.0 * (6144 + 4096 + 3 * 14336);
    EXPECT_NEAR(bytes / ((28 * blocks + 30 * tables) / static_cast<double>(gpus)), 1, 1e-3) << gpus;
  }
}

// The compute stream runs one op between two waits: it first waits for the first of two transfers, and at the end for
// the second.
TEST(StepClock, ExposesWhatNothingCovers) {
  const MachineRates machine = find_machine("h200");
  const MeshShape mesh{.shard = 8};
  const Op travel{.name = "all_gather", .bytes = 1e9, .bound = OpBound::kCommunication};
  const auto exposed = [&](double bytes) {
    RecordedStep step;
    step.shards = 8;
    step.streams = 2;
    step.signals = 2;
    step.ops = {{.op = {.name = "add", .bytes = bytes}, .axis = ""},
                {.op = travel, .axis = "shard", .of_compute = false}};
    using Action = OpRecord::Action;
    step.entries = {{Action::kOp, 1, 1},   {Action::kSignal, 1, 1}, {Action::kOp, 1, 1},  {Action::kSignal, 1, 2},
                    {Action::kWait, 0, 1}, {Action::kOp, 0, 0},     {Action::kWait, 0, 2}};
    for (const StepCost& cost : StepClock(step, machine, {}).run(mesh, 1).costs) {
      if (cost.kind == CostKind::kCommunication) return cost.seconds;
    }
    return -1.0;
  };
  const RankSpread node{8, 8};
  const double alone_s = collective_seconds(machine, {}, node, CollectiveKind::kAllGather, 1e9);
  const double overlapped_s = collective_seconds(machine, {}, node, CollectiveKind::kAllGather, 1e9, Overlap::kCompute);
  const double add_s = op_seconds(machine, {.name = "add", .bytes = 1e9});
  EXPECT_LT(add_s, overlapped_s);
  EXPECT_NEAR(exposed(1e9), alone_s + overlapped_s - add_s + kSlowdownOfCompute * add_s, 1e-9);
  EXPECT_NEAR(exposed(1e12), alone_s + kSlowdownOfCompute * overlapped_s, 1e-9);
}

}  // namespace

}  // namespace octavo::recorded_step_test
