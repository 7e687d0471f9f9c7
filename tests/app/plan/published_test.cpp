// Compares predictions with published throughput and bus bandwidths. Each test prints its table in the format of
// docs/internals/prediction.md.
#include <gtest/gtest.h>

#include <cmath>

#include "core/format.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo {
namespace {

struct Source {
  const char* name;
  const char* url;
  const char* software = "";  // Program that ran the training. Empty for collectives.
};

std::string link(const Source& source) { return fmt::format("[{}]({})", source.name, source.url); }

constexpr Source kBlog{"float8 of FSDP2", "https://pytorch.org/blog/training-using-float8-fsdp2", "PyTorch FSDP2"};
constexpr Source kTitan{"torchtitan",
                        "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
                        "torchtitan (PyTorch)"};
constexpr Source kNemo{"NeMo", "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/llama/README.md",
                       "NeMo (Megatron)"};

// Throughput of a published run on H100s, in tokens per second per GPU.
struct PublishedRun {
  Source source;
  const char* table;
  const char* size;  // Size of the Llama 3 preset.
  int64_t gpus;
  int64_t tensor;
  int64_t micro_batch;   // Micro-batch size. 0: not stated, so 1 and 2 are predicted.
  int64_t global_batch;  // Global batch size. 0: not stated, so one micro-batch per rank is predicted.
  const char* linear;
  double wps;
};
constexpr PublishedRun kRuns[] = {{kBlog, "table 1", "8B", 128, 1, 0, 0, "bfloat16", 8000},
                                  {kBlog, "table 1", "8B", 128, 1, 0, 0, "fp8_tensorwise", 10000},
                                  {kBlog, "table 1", "70B", 256, 1, 0, 0, "bfloat16", 956},
                                  {kBlog, "table 1", "70B", 256, 1, 0, 0, "fp8_tensorwise", 1430},
                                  {kBlog, "table 1", "405B", 512, 4, 0, 0, "bfloat16", 149},
                                  {kBlog, "table 1", "405B", 512, 4, 0, 0, "fp8_tensorwise", 227},
                                  {kBlog, "table 3", "70B", 512, 1, 0, 0, "bfloat16", 960},
                                  {kBlog, "table 3", "70B", 512, 1, 0, 0, "fp8_tensorwise", 1448},
                                  {kBlog, "table 3", "405B", 512, 4, 0, 0, "bfloat16", 152},
                                  {kBlog, "table 3", "405B", 512, 4, 0, 0, "fp8_tensorwise", 217},
                                  {kTitan, "table 1", "8B", 8, 1, 2, 16, "bfloat16", 6667},
                                  {kTitan, "table 1", "8B", 8, 1, 2, 16, "fp8_tensorwise", 8532},
                                  {kTitan, "table 3", "8B", 128, 1, 2, 256, "bfloat16", 6514},
                                  {kTitan, "table 3", "8B", 128, 1, 2, 256, "fp8_tensorwise", 8380},
                                  {kTitan, "table 4", "70B", 256, 8, 16, 512, "fp8_tensorwise", 829},
                                  {kNemo, "CP 2", "8B", 8, 1, 1, 128, "fp8_tensorwise", 13812},
                                  {kNemo, "PP 8", "70B", 64, 4, 1, 128, "fp8_tensorwise", 1621},
                                  {kNemo, "PP 8, CP 2", "405B", 1024, 8, 1, 512, "fp8_tensorwise", 315}};

double predicted_wps(const PublishedRun& run, int64_t micro_batch, ProcessGroup& group) {
  const PlanTarget target = gpus_of("h100", run.gpus);
  std::string preset = fmt::format("llama3_{}", run.size);
  preset.back() = 'b';
  const int64_t batch = run.global_batch > 0 ? run.global_batch : micro_batch * run.gpus / run.tensor;
  const ConfigArguments config{
      .path = std::string(OCTAVO_SOURCE_DIR) + "/configs/llama3_8b_8gpu.yaml",
      .overrides = {"model.preset=" + preset, fmt::format("precision.linear={}", run.linear), "data.seq_len=8192",
                    "parallel.data_parallel_shard=-1", "parallel.data_parallel_replicate=1",
                    "parallel.context_parallel=1", fmt::format("parallel.tensor_parallel={}", run.tensor),
                    fmt::format("training.micro_batch_size={}", micro_batch),
                    fmt::format("training.global_batch_size={}", batch)}};
  return make_plan(load_planned_config(config, target), target, group).prediction.value().wps;
}

TEST(Published, Training) {
  ProcessGroup group;
  std::vector<std::string> rows;
  for (const PublishedRun& run : kRuns) {
    std::vector<std::string> predicted;
    std::vector<std::string> errors;
    for (const int64_t micro_batch : {1, 2, 16}) {
      if (run.micro_batch > 0 ? micro_batch != run.micro_batch : micro_batch > 2) continue;
      const double wps = predicted_wps(run, micro_batch, group);
      predicted.push_back(with_thousands_separators(std::llround(wps)));
      errors.push_back(fmt::format("{:+.1f}%", 100 * (wps / run.wps - 1)));
    }
    rows.push_back(fmt::format("| {}, {} | {} | {} | {}, {} | `{}` | {} | {} | {} |", link(run.source), run.table,
                               run.source.software, run.size, run.gpus, run.tensor, run.linear,
                               with_thousands_separators(std::llround(run.wps)), fmt::join(predicted, ", "),
                               fmt::join(errors, ", ")));
  }
  expect_documented(rows, "internals/prediction.md");
}

constexpr Source kExpected{"NVIDIA/nccl-tests/issues/326", "https://github.com/NVIDIA/nccl-tests/issues/326"};
constexpr Source kVoltagePark{"aigatech/vpbenchmarking", "https://github.com/aigatech/vpbenchmarking"};
constexpr Source kThirtyTwo{"NVIDIA/nccl/issues/1218", "https://github.com/NVIDIA/nccl/issues/1218"};
constexpr Source kSingle{"NVIDIA/nccl-tests/issues/232", "https://github.com/NVIDIA/nccl-tests/issues/232"};
constexpr Source kTogether{"SkyPilot together_infiniband",
                           "https://docs.skypilot.co/en/latest/examples/performance/together_infiniband.html"};
constexpr Source kCoreWeave{"SkyPilot coreweave_infiniband",
                            "https://docs.skypilot.co/en/latest/examples/performance/coreweave_infiniband.html"};
constexpr Source kHundreds{"NVIDIA/nccl-tests/issues/283", "https://github.com/NVIDIA/nccl-tests/issues/283"};
constexpr Source kAllToAll{"NVIDIA/nccl-tests/issues/267", "https://github.com/NVIDIA/nccl-tests/issues/267"};

// Bus bandwidth of a collective in GB/s, as nccl-tests defines it.
struct PublishedCollective {
  const char* op;
  const char* where;
  int64_t ranks;
  int64_t stride;  // Distance between neighbouring ranks, on nodes of 8 GPUs.
  double mebibytes;
  double gb_s;
  Source source;
  bool modelled = true;  // False for reductions within switches and for measurements of a single iteration.
};
constexpr PublishedCollective kCollectives[] = {
    {"all_gather", "H100", 8, 1, 16384, 360, kExpected},
    {"all_gather", "H100, best of sizes", 32, 1, 8192, 323.53, kVoltagePark},
    {"all_gather", "H100, one iteration", 256, 1, 2048, 200, kThirtyTwo, false},
    {"all_reduce", "H100, tree, mean of both", 2, 8, 2, 20.5, kSingle},
    {"all_reduce", "H100, tree", 2, 8, 4, 27.3, kSingle},
    {"all_reduce", "H100, tree", 2, 8, 8, 36.5, kSingle},
    {"all_reduce", "H100, tree", 2, 8, 16, 39.9, kSingle},
    {"all_reduce", "H100, tree", 2, 8, 32, 41.4, kSingle},
    {"all_reduce", "H100, best of sizes", 32, 1, 8192, 330.93, kVoltagePark},
    {"all_reduce", "H100, NVLink SHARP", 16, 1, 512, 418.12, kTogether, false},
    {"all_reduce", "H100, NVLink SHARP", 16, 1, 1024, 444.99, kTogether, false},
    {"all_reduce", "H200, NVLink SHARP", 16, 1, 1024, 455.85, kCoreWeave, false},
    {"all_reduce", "H200, 300 to 350", 1984, 1, 512, 350, kHundreds},
    {"all_to_all", "H100, about a card's", 48, 1, 8192, 50, kAllToAll},
};

TEST(Published, Collectives) {
  const MachineRates machine = find_machine("h100");
  const Cluster cluster;
  std::vector<std::string> rows;
  for (const PublishedCollective& row : kCollectives) {
    const RankSpread group = spread(row.ranks, row.stride, cluster);
    const double gb_s =
        bus_bytes_per_s(machine, cluster, group, collective_named(row.op), row.mebibytes * 0x1p20) / 1e9;
    const double error = gb_s / row.gb_s - 1;
    const std::string size = row.mebibytes < 1024 ? fmt::format("{:.0f} MiB", row.mebibytes)
                                                  : fmt::format("{:.0f} GiB", row.mebibytes / 1024);
    rows.push_back(fmt::format("| `{}`, {} | {}, {} | {} | {:.1f} | {:.1f} | {:+.0f}% | {} |", row.op, row.where,
                               row.ranks, group.nodes(), size, row.gb_s, gb_s, 100 * error, link(row.source)));
    EXPECT_TRUE(!row.modelled || std::abs(error) < 0.22) << rows.back();
  }
  expect_documented(rows, "internals/prediction.md");
}

}  // namespace
}  // namespace octavo
