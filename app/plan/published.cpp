#include "app/plan/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/format.h"

namespace octavo {

const std::vector<PublishedSetup>& published_setups() {
  static const std::vector<PublishedSetup> kSetups = [] {
    struct Source {
      const char* system;
      const char* hardware;
      const char* url;
    };
    static constexpr Source kBlog{"torchtitan", "H100", "https://pytorch.org/blog/training-using-float8-fsdp2"};
    static constexpr Source kTitan{
        "torchtitan", "H100, 500 W, memory of 2.4 TB/s",
        "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"};
    static constexpr Source kMegatron{"NeMo", "H100",
                                      "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/llama/README.md"};
    struct Wps {
      const Source* source;
      const char* table;
      const char* preset;
      int64_t gpus;
      int64_t tensor;
      int64_t micro_batch;   // 0: not stated
      int64_t global_batch;  // 0: one micro-batch a rank
      double bfloat16;       // 0: none
      double float8;         // tensorwise, or of the whole tensor otherwise
    };
    constexpr Wps kTables[] = {{&kBlog, "table 1", "llama3_8b", 128, 1, 0, 0, 8000, 10000},
                               {&kBlog, "table 1", "llama3_70b", 256, 1, 0, 0, 956, 1430},
                               {&kBlog, "table 1", "llama3_405b", 512, 4, 0, 0, 149, 227},
                               {&kBlog, "table 3", "llama3_70b", 512, 1, 0, 0, 960, 1448},
                               {&kBlog, "table 3", "llama3_405b", 512, 4, 0, 0, 152, 217},
                               {&kTitan, "table 1", "llama3_8b", 8, 1, 2, 16, 6667, 8532},
                               {&kTitan, "table 3", "llama3_8b", 128, 1, 2, 256, 6514, 8380},
                               {&kTitan, "table 4", "llama3_70b", 256, 8, 16, 512, 0, 829},
                               {&kMegatron, "CP 2", "llama3_8b", 8, 1, 1, 128, 0, 13812},
                               {&kMegatron, "PP 8", "llama3_70b", 64, 4, 1, 128, 0, 1621},
                               {&kMegatron, "PP 8, CP 2", "llama3_405b", 1024, 8, 1, 512, 0, 315}};
    std::vector<PublishedSetup> setups;
    for (const Wps& row : kTables) {
      for (const bool float8 : {false, true}) {
        const double wps = float8 ? row.float8 : row.bfloat16;
        if (wps == 0) continue;
        setups.push_back({.preset = row.preset,
                          .gpus = row.gpus,
                          .gpus_stated = row.source != &kBlog || std::string(row.table) == "table 3",
                          .tensor = row.tensor,
                          .micro_batch = row.micro_batch,
                          .global_batch = row.global_batch,
                          .linear = float8 ? "fp8_tensorwise" : "bfloat16",
                          .wps = wps,
                          .system = row.source->system,
                          .hardware = row.source->hardware,
                          .table = row.table,
                          .source = row.source->url});
      }
    }
    return setups;
  }();
  return kSetups;
}

std::span<const PublishedCollective> published_collectives() {
  constexpr const char* kExpected = "https://github.com/NVIDIA/nccl-tests/issues/326";
  constexpr const char* kVoltagePark = "https://github.com/aigatech/vpbenchmarking";
  constexpr const char* kTogether = "https://docs.skypilot.co/en/latest/examples/performance/together_infiniband.html";
  constexpr const char* kCoreWeave =
      "https://docs.skypilot.co/en/latest/examples/performance/coreweave_infiniband.html";
  constexpr const char* kThirtyTwo = "https://github.com/NVIDIA/nccl/issues/1218";
  constexpr const char* kHundreds = "https://github.com/NVIDIA/nccl-tests/issues/283";
  constexpr const char* kSingle = "https://github.com/NVIDIA/nccl-tests/issues/232";
  constexpr const char* kAllToAll = "https://github.com/NVIDIA/nccl-tests/issues/267";
  static constexpr PublishedCollective kRows[] = {
      {"all_gather", 8, 1, 0x1p34, 360e9, "H100", "", kExpected},
      {"all_gather", 32, 1, 0x1p33, 323.53e9, "H100", "best of sizes", kVoltagePark},
      {"all_gather", 256, 1, 0x1p31, 200e9, "H100", "one iteration", kThirtyTwo},
      {"all_reduce", 2, 8, 0x1p21, 20.5e9, "H100", "tree, mean of both", kSingle},
      {"all_reduce", 2, 8, 0x1p22, 27.3e9, "H100", "tree", kSingle},
      {"all_reduce", 2, 8, 0x1p23, 36.5e9, "H100", "tree", kSingle},
      {"all_reduce", 2, 8, 0x1p24, 39.9e9, "H100", "tree", kSingle},
      {"all_reduce", 2, 8, 0x1p25, 41.4e9, "H100", "tree", kSingle},
      {"all_reduce", 32, 1, 0x1p33, 330.93e9, "H100", "best of sizes", kVoltagePark},
      {"all_reduce", 16, 1, 0x1p29, 418.12e9, "H100", "NVLink SHARP", kTogether},
      {"all_reduce", 16, 1, 0x1p30, 444.99e9, "H100", "NVLink SHARP", kTogether},
      {"all_reduce", 16, 1, 0x1p30, 455.85e9, "H200", "NVLink SHARP", kCoreWeave},
      {"all_reduce", 1984, 1, 0x1p29, 350e9, "H200", "300 to 350", kHundreds},
      {"all_to_all", 48, 1, 0x1p33, 50e9, "H100", "about a card's", kAllToAll},
  };
  return kRows;
}

nlohmann::ordered_json published_collectives_json(const MachineRates& machine, const Cluster& cluster) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PublishedCollective& row : published_collectives()) {
    const RankSpread group = spread(row.ranks, row.stride, cluster);
    const double bus = bus_bytes_per_s(machine, cluster, group, collective_named(row.op), row.bytes);
    rows.push_back({{"op", row.op},
                    {"ranks", row.ranks},
                    {"nodes", group.nodes()},
                    {"bytes", row.bytes},
                    {"hardware", row.hardware},
                    {"note", row.note},
                    {"source", row.source},
                    {"published_bus_bytes_per_s", row.bus_bytes_per_s},
                    {"bus_bytes_per_s", bus},
                    {"error", bus / row.bus_bytes_per_s - 1}});
  }
  return rows;
}

namespace {

void print_training(const nlohmann::ordered_json& rows) {
  std::cout << fmt::format("{:<12}{:>5} {:>7}  {:<15}{:<11}{:>6}{:>10}{:>11}{:>8}{:>8}  {:<13} {}\n", "model", "GPUs",
                           "tensor", "precision", "system", "micro", "published", "predicted", "error", "GiB", "memory",
                           "source");
  std::vector<std::string> sources;  // with what they were measured on
  for (const nlohmann::ordered_json& row : rows) {
    const std::string source =
        fmt::format("{}, on {}", row["source"].get<std::string>(), row["hardware"].get<std::string>());
    auto found = std::find(sources.begin(), sources.end(), source);
    if (found == sources.end()) found = sources.insert(found, source);
    const bool stated = row["gpus_stated"];
    std::cout << fmt::format(
        "{:<12}{:>5}{}{:>7}  {:<15}{:<11}{:>6}{:>10}{:>11}{:>+7.0f}%{:>8.1f}  {:<13} [{}] {}\n",
        row["model"].get<std::string>(), row["gpus"].get<int64_t>(), stated ? " " : "*", row["tensor"].get<int64_t>(),
        row["precision"].get<std::string>(), row["system"].get<std::string>(), row["micro_batch_size"].get<int64_t>(),
        with_thousands_separators(std::llround(row["published_wps"].get<double>())),
        with_thousands_separators(std::llround(row["wps"].get<double>())), 100 * row["error"].get<double>(),
        gib(row["total_bytes"].get<double>()), row["fits"].get<bool>() ? "fits" : "does not fit",
        found - sources.begin() + 1, row["table"].get<std::string>());
  }
  std::cout << "\n";
  for (size_t i = 0; i < sources.size(); ++i) std::cout << fmt::format("[{}] {}\n", i + 1, sources[i]);
  std::cout << fmt::format(
      "wps: published on H100, predicted for {} (--machine); PP and CP are axes of theirs, in place of which more "
      "ranks "
      "here have shards\n* of the source's clusters of 128, 256 and 512 GPUs; it does not say which of them this was\n",
      rows[0]["predicted_on"].get<std::string>());
}

void print_collectives(const nlohmann::ordered_json& rows) {
  std::cout << fmt::format("\n{:<12}{:>6}{:>7}{:>10}{:>16}{:>11}{:>8}  {}\n", "collective", "ranks", "nodes", "MiB",
                           "published GB/s", "predicted", "error", "on");
  for (const nlohmann::ordered_json& row : rows) {
    const auto note = row["note"].get<std::string>();
    std::cout << fmt::format("{:<12}{:>6}{:>7}{:>10.0f}{:>16.1f}{:>11.1f}{:>+7.0f}%  {}{}, {}\n",
                             row["op"].get<std::string>(), row["ranks"].get<int64_t>(), row["nodes"].get<int64_t>(),
                             row["bytes"].get<double>() / 0x1p20, row["published_bus_bytes_per_s"].get<double>() / 1e9,
                             row["bus_bytes_per_s"].get<double>() / 1e9, 100 * row["error"].get<double>(),
                             row["hardware"].get<std::string>(), note.empty() ? "" : " (" + note + ")",
                             row["source"].get<std::string>());
  }
}

}  // namespace

void print_published(const nlohmann::ordered_json& published) {
  print_training(published["training"]);
  print_collectives(published["collectives"]);
}

}  // namespace octavo
