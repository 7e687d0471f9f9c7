// Tests that a machine file is written and read again, and that a wrong one is refused.
#include "app/predict/machine_rates.h"

#include <gtest/gtest.h>

#include <fstream>

#include "app/measure/doctor_checks.h"
#include "core/error.h"
#include "tests/core/messages.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

using nlohmann::json;

MachineRates example() {
  return {
      .name = "node7",
      .device = "NVIDIA H200",
      .gpu_memory_bytes = 150'000'000'000,
      .multiprocessors = 132,
      .matmul_flops = {{"bfloat16", 7e14}, {"fp8_tensorwise", 1.3e15}},
      .matmuls = {{"bfloat16", false, {8192, 8192, 8192}, 7e14}, {"fp8_tensorwise", true, {8192, 4096, 512}, 1.2e15}},
      .attention = {{1, 8192, 32, 8, 128}, 6.4e14, 4.8e14},
      .memory_bytes_per_s = 4.2e12,
      .collectives = CollectiveRates{.ranks = 8,
                                     .hosts = 1,
                                     .bus_bytes_per_s = 3.2e11,
                                     .latency_s = 2e-5,
                                     .sizes = {{"all_gather", 268435456, 7.4e-4, 3.2e11}}},
      .disk_write_bytes_per_s = 1.5e9,
      .not_measured = {"collectives, taken from an H100"},
      .versions = {{"nccl", "2.28.9"}}};
}

std::string refusal(const json& file) {
  return message_of<InputError>([&] { machine_rates_from_json(file, "m.json"); });
}

TEST(MachineRates, JsonComesBack) {
  const auto written = to_json(example());
  EXPECT_EQ(written["format"], "octavo machine");
  EXPECT_EQ(written["product_flops"]["fp8_tensorwise"], 1.3e15);
  EXPECT_EQ(written["products"][1]["k"], 512);
  EXPECT_EQ(written["attention_backward_flops"], 4.8e14);
  EXPECT_EQ(written["collectives"]["sizes"][0]["op"], "all_gather");
  const MachineRates read = machine_rates_from_json(json::parse(written.dump()), "m.json");
  EXPECT_EQ(to_json(read).dump(), written.dump());
}

TEST(MachineRates, OneRankHasNoCollectives) {
  MachineRates rates = example();
  rates.collectives.reset();
  const json written = json::parse(to_json(rates).dump());
  EXPECT_TRUE(written["collectives"].is_null());
  EXPECT_FALSE(machine_rates_from_json(written, "m.json").collectives.has_value());
}

TEST(MachineRates, RefusesWhatIsWrong) {
  json good = json::parse(to_json(example()).dump());
  good.erase("not_measured");  // This key is optional.
  expect_mentions(refusal(json::array()), {"expected an object"});
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  expect_mentions(with("/format", "else"), {"expected \"octavo machine\""});
  expect_mentions(with("/version", 2), {"version is 2, expected 1"});
  expect_mentions(with("/network_oversubscription", 4), {"network_oversubscription"});
  expect_mentions(with("/memory_bytes_per_s", 0), {"m.json: memory_bytes_per_s is 0, expected a positive number"});
  expect_mentions(with("/memory_bytes_per_s", "fast"), {"is \"fast\""});
  expect_mentions(with("/product_flops/bfloat16", -1), {"product_flops: bfloat16 is -1"});
  expect_mentions(with("/product_flops", json::object()), {"product_flops is empty"});
  expect_mentions(with("/products/1/k", 0.5), {"products[1]: k is 0.5, expected an integer"});
  expect_mentions(with("/products", 3), {"products is 3, expected a list"});
  expect_mentions(with("/collectives/ranks", 1), {"collectives: ranks is 1"});
  expect_mentions(with("/not_measured", 3), {"not_measured is 3, expected a list of texts"});
  expect_mentions(with("/not_measured", {1}), {"not_measured is [1], expected a list of texts"});
  expect_mentions(with("/attention_shape", json()), {"attention_shape is null, expected an object"});
  expect_mentions(with("/versions/nccl", 2), {"versions: nccl is 2, expected text"});
  for (const auto& item : good.items()) {
    json file = good;
    file.erase(item.key());
    expect_mentions(refusal(file), {"m.json has no " + item.key()});
  }
}

TEST(MachineRates, LoadsAFile) {
  const TempDir dir;
  const std::string path = dir / "machine.json";
  EXPECT_THROW(find_machine(path), InputError);  // The file does not exist yet.
  std::ofstream(path) << to_json(example()).dump(2);
  EXPECT_EQ(find_machine(path).name, "node7");
  std::ofstream(path) << "{\"format\": ";
  EXPECT_THROW(find_machine(path), InputError);
}

TEST(MachineRates, SlowestAndFastestRanks) {
  std::vector<MachineRates> ranks(3, example());
  ranks[1].matmuls[1].flops = 1e15;
  ranks[2].matmuls[1].flops = 1.4e15;
  ranks[2].disk_write_bytes_per_s = 1e9;
  ranks[2].gpu_memory_bytes = 100;
  const MachineRates slowest = slowest_of(ranks);
  EXPECT_EQ(slowest.matmuls[0].flops, 7e14);
  EXPECT_EQ(slowest.matmuls[1].flops, 1e15);
  EXPECT_EQ(slowest.disk_write_bytes_per_s, 1e9);
  EXPECT_EQ(slowest.gpu_memory_bytes, 100);
  for (const RateSpread& spread : spreads(ranks)) {
    if (spread.name != "fp8_tensorwise fast 8192 x 4096 x 512") continue;
    EXPECT_EQ(spread.slowest, 1e15);
    EXPECT_EQ(spread.slowest_rank, 1);
    EXPECT_EQ(spread.fastest, 1.4e15);
    EXPECT_EQ(spread.fastest_rank, 2);
    ranks.clear();
  }
  EXPECT_TRUE(ranks.empty()) << "the rate is unknown";
}

TEST(MachineRates, RanksMustHaveMeasuredTheSame) {
  std::vector<MachineRates> ranks(2, example());
  ranks[1].matmuls[1].size.k = 1024;
  EXPECT_THROW(slowest_of(ranks), Error);
}

}  // namespace
}  // namespace octavo
