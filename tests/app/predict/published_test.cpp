// Compares predictions for H100s with the published throughput and bus bandwidths in docs/internals/prediction.md.
#include "core/format.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::published_test {
namespace {

// Returns the two numbers in a cell such as "1,984, 248".
std::pair<int64_t, int64_t> two_in(const std::string& cell) {
  const size_t comma = cell.rfind(", ");
  return {static_cast<int64_t>(number_in(cell.substr(0, comma))), std::stoll(cell.substr(comma + 2))};
}

// Cells: source, software, size of the Llama 3 preset, GPUs and tensor-parallel ranks, micro-batch and global batch or
// "not stated", precision, published, predicted and errors. A batch that is not stated is predicted as one micro-batch
// of one and of two sequences per rank.
TEST(Published, Training) {
  for (const TableRow& row : documented_table("internals/prediction.md", "| published by |")) {
    const auto [gpus, tensor] = two_in(row[3]);
    const PlanTarget target = gpus_of("h100", gpus);
    std::vector<std::pair<int64_t, int64_t>> batches = {{1, gpus / tensor}, {2, 2 * gpus / tensor}};
    if (row[4] != "not stated") batches = {two_in(row[4])};
    std::vector<std::string> predicted;
    std::vector<std::string> errors;
    for (const auto& [micro_batch, batch] : batches) {
      const std::string overrides = fmt::format(
          "model.preset=llama3_{}b precision.linear={} data.seq_len=8192 parallel.data_parallel_shard=-1 "
          "parallel.data_parallel_replicate=1 parallel.context_parallel=1 parallel.tensor_parallel={} "
          "training.micro_batch_size={} training.global_batch_size={}",
          std::stoi(row[2]), row[5].substr(1, row[5].size() - 2), tensor, micro_batch, batch);
      const Config config = load_planned_config(arguments_of("llama3_8b_8gpu.yaml", overrides), target);
      const double wps = plan_on(config, target).prediction.value().wps;
      predicted.push_back(with_thousands_separators(std::llround(wps)));
      errors.push_back(fmt::format("{:+.1f}%", 100 * (wps / number_in(row[6]) - 1)));
    }
    expect_cells(row, 7, {fmt::format("{}", fmt::join(predicted, ", ")), fmt::format("{}", fmt::join(errors, ", "))});
  }
}

// Cells: collective and circumstances, ranks and nodes of 8 GPUs, size, published and predicted bus bandwidth in GB/s
// as nccl-tests defines it, error, source.
TEST(Published, Collectives) {
  constexpr int64_t kGpusPerNode = 8;
  const MachineRates machine = find_machine("h100");
  for (const TableRow& row : documented_table("internals/prediction.md", "| | ranks, nodes |")) {
    const auto [ranks, nodes] = two_in(row[1]);
    const RankSpread group = spread(ranks, ranks == nodes ? kGpusPerNode : 1, kGpusPerNode);
    EXPECT_EQ(group.nodes(), nodes) << row[0];
    const double bytes = std::stod(row[2]) * (row[2].ends_with("GiB") ? 0x1p30 : 0x1p20);
    const CollectiveKind op = collective_named(row[0].substr(1, row[0].rfind('`') - 1));
    const double sent = (op == CollectiveKind::kAllReduce ? 2 : 1) * bytes * (1 - 1 / static_cast<double>(ranks));
    const double gb_s = sent / collective_seconds(machine, NetworkRates(), group, op, bytes) / 1e9;
    const double error = gb_s / number_in(row[3]) - 1;
    expect_cells(row, 4, {fmt::format("{:.1f}", gb_s), fmt::format("{:+.0f}%", 100 * error)});
    // Reductions within switches and measurements of a single iteration are not modelled.
    const bool modelled = !row[0].ends_with("NVLink SHARP") && !row[0].ends_with("one iteration");
    EXPECT_TRUE(!modelled || std::abs(error) < 0.22) << row[0] << ", " << row[1];
  }
}

}  // namespace
}  // namespace octavo::published_test
