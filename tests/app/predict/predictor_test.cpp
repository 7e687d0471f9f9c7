// Compares predictions with measured steps (docs/benchmarks) that tests/app/predict/measured_runs_test.cpp does not
// have, such as differences between two runs.
#include "app/predict/predictor.h"

#include "core/error.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::predictor_test {

namespace {

constexpr double kTolerance = 0.08;
constexpr const char* k8B = "llama3_8b_8gpu.yaml";

MachineRates machine_before() {
  MachineRates machine = find_machine("h200");
  use_cudnn_attention(machine);
  return machine;
}

StepPrediction predict(const Config& config, int64_t gpus, const MachineRates& machine = find_machine("h200")) {
  return predict_step(job_on(config, gpus), machine, {});
}

TEST(Predictor, SmallMicroBatches) {
  const Config config = load_for_gpus("llama3_1.8b_1gpu.yaml",
                                      "training.global_batch_size=4 training.micro_batch_size=4 data.seq_len=4096 "
                                      "precision.linear=bfloat16",
                                      1);
  EXPECT_NEAR(predict(config, 1, machine_before()).wps / 51085, 1, kTolerance);
}

// Tests layers of the 70B model on two GPUs. All of them are recomputed except the last.
TEST(Predictor, RecomputedLayers) {
  const auto step_ms = [](int64_t layers) {
    const Config config = load_for_gpus("llama3_70b_8gpu.yaml",
                                        fmt::format("training.global_batch_size=2 model.num_layers={}", layers), 2);
    const Job job = job_on(config, 2, {.reshard_after_forward = true}, {.mode = ActivationCheckpointing::Mode::kFull});
    return predict_step(job, machine_before(), {}).step_s * 1e3;
  };
  EXPECT_NEAR(step_ms(18) / 1186.8, 1, kTolerance);
  EXPECT_NEAR((step_ms(18) - step_ms(9)) / (1186.8 - 637.9), 1, kTolerance);
}

// Tests the 8B model on four GPUs, with weights gathered again in backward.
TEST(Predictor, ActivationCheckpointing) {
  using Mode = ActivationCheckpointing::Mode;
  const Config config = load_for_gpus(k8B, "training.global_batch_size=8", 4);
  const auto step_ms = [&](const ActivationCheckpointing& checkpointing) {
    const Job job = job_on(config, 4, {.reshard_after_forward = true}, checkpointing);
    return predict_step(job, machine_before(), {}).step_s * 1e3;
  };
  const double none = step_ms({.mode = Mode::kNone});
  const double selective = step_ms({.mode = Mode::kSelective});
  const double full = step_ms({.mode = Mode::kFull});
  EXPECT_NEAR(none / 1043.5, 1, kTolerance);
  EXPECT_NEAR(selective / 1066.0, 1, kTolerance);
  EXPECT_NEAR(full / 1266.1, 1, kTolerance);
  EXPECT_NEAR(selective / none, 1066.0 / 1043.5, 0.02);
  EXPECT_NEAR(full / none, 1266.1 / 1043.5, 0.04);
  // With full recomputation 31 of the 32 blocks are recomputed, with a ratio of 0.25 it is 7.
  const double seven = step_ms({.mode = Mode::kBlock, .ratio = 0.25}) - none;
  EXPECT_NEAR(seven / (full - none), 7.0 / 31, 1e-6);
  EXPECT_EQ(step_ms({.mode = Mode::kBlock, .ratio = 1.0 / 32}), none);
}

TEST(Predictor, GradientsReducedOncePerStep) {
  const auto step_ms = [](int64_t micro_batches, bool once, const NetworkRates& network) {
    const Config config = load_for_gpus(k8B, fmt::format("training.global_batch_size={}", 32 * micro_batches), 16);
    return predict_step(job_on(config, 16, {.accumulate_unsharded = once}), find_machine("h200"), network).step_s * 1e3;
  };
  const NetworkRates slow{.gbps = 20};
  EXPECT_LT(step_ms(4, true, slow), step_ms(4, false, slow));
  EXPECT_NEAR(step_ms(1, true, slow), step_ms(1, false, slow), 0.1);
}

double tensor_parallel_ms(const char* preset, int64_t layers) {
  const Config config = load_for_gpus(
      k8B,
      fmt::format("model.preset={} model.num_layers={} training.global_batch_size=2 parallel.tensor_parallel=4", preset,
                  layers),
      4);
  return predict(config, 4).step_s * 1e3;
}

TEST(Predictor, TensorParallel) {
  const auto expect_ms = [](double predicted, double measured) {
    EXPECT_NEAR(predicted / measured, 1, kTolerance) << predicted << " ms predicted, " << measured;
  };
  expect_ms(tensor_parallel_ms("llama3_70b", 3), 131);
  expect_ms(tensor_parallel_ms("llama3_70b", 6), 217);
  expect_ms(tensor_parallel_ms("llama3_70b", 4) - tensor_parallel_ms("llama3_70b", 3), 28.7);
  expect_ms(tensor_parallel_ms("llama3_405b", 1), 184);
  expect_ms(tensor_parallel_ms("llama3_405b", 3), 363);
  expect_ms(tensor_parallel_ms("llama3_405b", 4) - tensor_parallel_ms("llama3_405b", 3), 89.5);
}

TEST(Predictor, MatmulRatesAreMeasuredOrInterpolated) {
  MachineRates machine = find_machine("h200");
  machine.matmuls = {{"bfloat16", false, {1024, 1024, 1024}, 4e14}, {"bfloat16", false, {8192, 8192, 8192}, 7e14}};
  EXPECT_NEAR(matmul_rate(machine, "bfloat16", false, {1024, 1024, 1024}), 4e14, 1e9);
  EXPECT_NEAR(matmul_rate(machine, "bfloat16", false, {8192, 8192, 8192}), 7e14, 1e9);
  const double between = matmul_rate(machine, "bfloat16", false, {4096, 4096, 4096});
  EXPECT_GT(between, 5.5e14);
  EXPECT_LT(between, 7e14);
  EXPECT_EQ(matmul_rate(machine, "fp8_rowwise", true, {64, 64, 64}), machine.matmul_flops.at("fp8_rowwise"));
  EXPECT_THROW(matmul_rate(machine, "float32", false, {64, 64, 64}), InputError);
}

// Gradients in bfloat16 have half the bytes. One node reduces them by an all-to-all, nodes with eight shards each by a
// ring.
TEST(Predictor, ReducedInBFloat16) {
  const auto step_ms = [](const char* reduce, int64_t gpus) {
    const Config config =
        load_for_gpus(k8B, fmt::format("training.global_batch_size={} precision.reduce={}", 2 * gpus, reduce), gpus);
    return predict(config, gpus).step_s * 1e3;
  };
  EXPECT_NEAR(step_ms("bfloat16", 8) / step_ms("float32", 8), 1, 0.05);
  EXPECT_LT(step_ms("bfloat16", 64), 1.01 * step_ms("float32", 64));
}

TEST(Predictor, ChecksAddUp) {
  const Config config = load_for_gpus(k8B, "training.global_batch_size=16", 8);
  const StepPrediction p = predict(config, 8);
  double sum = 0;
  for (const CostKind kind :
       {CostKind::kMatmul, CostKind::kAttention, CostKind::kMemory, CostKind::kOptimizer, CostKind::kCommunication}) {
    sum += p.seconds(kind);
  }
  EXPECT_NEAR(sum, p.step_s, 1e-9);
  EXPECT_LT(p.floor_s, p.step_s);
  // Counts the FLOPs of the matmuls as MFU does, but without attention.
  double matmul_flops = 0;
  for (const StepCost& cost : p.costs) matmul_flops += cost.kind == CostKind::kMatmul ? cost.flops : 0;
  EXPECT_NEAR(matmul_flops / (6.0 * static_cast<double>(config.model.num_matmul_parameters()) * 2 * 8192), 1, 1e-3);
}

TEST(Predictor, RecomputationAndSlowNetworksCost) {
  using Mode = ActivationCheckpointing::Mode;
  const Config config = load_for_gpus(k8B, "training.global_batch_size=32", 16);
  const MachineRates machine = find_machine("h200");
  const auto step_s = [&](Mode mode, const NetworkRates& network) {
    return predict_step(job_on(config, 16, {}, {.mode = mode}), machine, network).step_s;
  };
  const double none = step_s(Mode::kNone, {});
  const double selective = step_s(Mode::kSelective, {});
  const double full = step_s(Mode::kFull, {});
  EXPECT_GT(selective, none);
  EXPECT_GT(full, selective);
  EXPECT_LT(full, none * 1.4);
  EXPECT_GT(step_s(Mode::kFull, {.gbps = 10}), full);
}

// A 1B model, whose tied table is on the first and the last stage.
TEST(Predictor, PipelineStages) {
  const auto predicted = [](const char* schedule, const NetworkRates& network) {
    const Config config = load_for_gpus("llama3_1b_1gpu.yaml",
                                        fmt::format("training.global_batch_size=64 training.micro_batch_size=1 "
                                                    "parallel.pipeline_parallel=4 parallel.pipeline_schedule={}",
                                                    schedule),
                                        16);
    return predict_step(job_on(config, 16), find_machine("h200"), network);
  };
  const StepPrediction p = predicted("1f1b", {});
  ASSERT_EQ(p.stages.size(), 4u);
  double sum_s = 0;
  for (const StepCost& cost : p.costs) sum_s += cost.seconds;
  EXPECT_NEAR(sum_s, p.step_s, 1e-9);
  const StagePrediction& slowest = p.stages[static_cast<size_t>(p.slowest_stage())];
  for (const StagePrediction& stage : p.stages) {
    EXPECT_NEAR(stage.busy_s + stage.waiting_s, p.step_s, 1e-9);
    EXPECT_LE(stage.busy_s, slowest.busy_s);
  }
  // At least the bubble of equal stages with 16 micro-batches.
  EXPECT_GT(p.bubble(), 3.0 / 19);
  EXPECT_EQ(p.seconds(CostKind::kStages), slowest.waiting_s);
  EXPECT_TRUE(std::any_of(p.costs.begin(), p.costs.end(),
                          [](const StepCost& cost) { return cost.name == "exchange, pipeline axis"; }));
  EXPECT_LT(predicted("zero_bubble", {}).bubble(), p.bubble());
  EXPECT_GT(predicted("1f1b", {.gbps = 10}).step_s, p.step_s);
}

TEST(Predictor, ChunksOfPipelineStages) {
  const std::string stages = "training.global_batch_size=64 training.micro_batch_size=1 parallel.pipeline_parallel=4 ";
  const StepPrediction whole = predict(load_for_gpus(k8B, stages, 16), 16);
  const StepPrediction chunks =
      predict(load_for_gpus(k8B, stages + "parallel.pipeline_schedule=interleaved parallel.pipeline_chunks=2", 16), 16);
  ASSERT_EQ(chunks.stages.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(chunks.stages[i].blocks, whole.stages[i].blocks);
    EXPECT_NEAR(chunks.stages[i].busy_s, whole.stages[i].busy_s, 0.01 * whole.stages[i].busy_s);
  }
  // The bubble of equal stages with 16 micro-batches is 3 / 19, or 3 / 35 with 2 chunks.
  EXPECT_LT(chunks.bubble(), 0.75 * whole.bubble());
}

TEST(Predictor, FlopsByPart) {
  const ModelConfig model = model_preset("llama3_8b");
  double sum = 0;
  double attention = 0;
  for (const auto& [part, flops_of_part] : flops_by_part(model, 8192)) {
    sum += flops_of_part;
    if (part == "attention") attention = flops_of_part;
  }
  // MFU counts all attention scores, and the norms among the parameters. A step computes only the causal half of the
  // scores, and recomputes it in backward.
  EXPECT_NEAR((sum - attention) / (6.0 * static_cast<double>(model.num_matmul_parameters())), 1, 1e-3);
  EXPECT_NEAR(attention, 7.0 * 32 * 32 * 128 * 8192, 1);
}

TEST(MachineFiles, AreThere) {
  EXPECT_EQ(find_machine("h200").device, "NVIDIA H200");
  EXPECT_LT(find_machine("h100").gpu_memory_bytes, find_machine("h200").gpu_memory_bytes);
  EXPECT_LT(find_machine("h100").memory_bytes_per_s, find_machine("h200").memory_bytes_per_s);
  EXPECT_EQ(find_machine("H100").device, find_machine("h100").device);
  EXPECT_THROW(find_machine("h300"), InputError);
}

}  // namespace

}  // namespace octavo::predictor_test
