// Tests of the bench: lower bounds of op times, and the command itself on a small model.
#include "app/measure/bench.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(BenchFloor, IsTheSlowerOfArithmeticAndMemory) {
  const DeviceRates rates{.matmul = 1e12, .fp8_matmul = 2e12, .bandwidth = 1e12};
  EXPECT_DOUBLE_EQ(floor_ms({.flops = 4e9, .bytes = 1e9}, rates), 4);
  EXPECT_DOUBLE_EQ(floor_ms({.flops = 4e9, .fp8_flops = 4e9, .bytes = 1e9}, rates), 2);
  EXPECT_DOUBLE_EQ(floor_ms({.flops = 4e9, .fp8_flops = 2e9}, rates), 3);
  EXPECT_DOUBLE_EQ(floor_ms({.flops = 4e9, .bytes = 9e9}, rates), 9);
  EXPECT_DOUBLE_EQ(floor_ms({.bytes = 1e9}, rates), 1);
  EXPECT_DOUBLE_EQ(floor_ms({.bytes = 1e9, .communication = true}, rates), 0);
}

TEST(BenchFloor, Sums) {
  const ProfiledStep profiled{
      .step_ms = 13,
      .ops = {{"qkv", {.calls = 2, .milliseconds = 6, .flops = 8e9, .fp8_flops = 8e9, .bytes = 1}},
              {"sdpa_forward", {.calls = 1, .milliseconds = 3, .flops = 2e9}},
              {"adamw", {.calls = 1, .milliseconds = 2, .bytes = 1e9}},
              {"all_reduce", {.calls = 1, .milliseconds = 1, .bytes = 1e9, .communication = true}}}};
  OrderedJson result{{"step_ms", 1.2}};  // The timed steps ran without the profiler.
  const Floors floors{.rates = {.matmul = 1e12, .fp8_matmul = 2e12, .bandwidth = 1e12},
                      .forward_backward_times = {14, 12, 13}};
  add_ops(result, profiled, &floors);
  EXPECT_EQ(result["ops"][0]["op"].get<std::string>(), "qkv");  // The longest op comes first.
  EXPECT_TRUE(result["ops"][0]["fp8"]);
  EXPECT_DOUBLE_EQ(result["ops"][0]["floor_ms"], 4);
  EXPECT_DOUBLE_EQ(result["ops"][0]["ratio"], 1.5);
  EXPECT_TRUE(result["ops"][3]["floor_ms"].is_null());
  EXPECT_DOUBLE_EQ(result["ops_ms"], 12);
  EXPECT_DOUBLE_EQ(result["floor_ms"], 7);
  EXPECT_DOUBLE_EQ(result["unexplained_ms"], 1);
  double shares = 0;
  for (const OrderedJson& op : result["ops"]) shares += op["share"].get<double>();
  EXPECT_DOUBLE_EQ(shares, 12.0 / 13);
  add_exposed_communication(result, profiled);
  EXPECT_DOUBLE_EQ(result["exposed_communication_ms"], 2);
  EXPECT_DOUBLE_EQ(result["forward_backward_ms"], 13);
  EXPECT_DOUBLE_EQ(result["products_and_attention_floor_ms"], 6);
  EXPECT_DOUBLE_EQ(result["forward_backward_ratio"], 13.0 / 6);
}

class BenchCommandTest : public ConfigTest {
 protected:
  // Returns what `octavo bench --json OPTIONS` prints.
  OrderedJson bench(const std::string& options) const {
    CLI::App app;
    StartupTimer timer;
    Console console(STDOUT_FILENO);
    CommandLine line(app, timer, console);
    app.parse(
        fmt::format("bench {} device=cpu data.seq_len=32 training.global_batch_size=2 --warmup 1 --steps 2 --json {}",
                    write(kTrainable), options));
    EXPECT_TRUE(line.prints_json());
    ProcessGroup group;
    testing::internal::CaptureStdout();
    int exit_code = -1;
    try {
      exit_code = line.command()(group);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    const std::string printed = testing::internal::GetCapturedStdout();
    EXPECT_EQ(exit_code, 0);
    return OrderedJson::parse(printed);
  }
};

TEST_F(BenchCommandTest, OpsHaveFloors) {
  const OrderedJson result = bench("--ops");
  // The CPU computes in float32 by default.
  EXPECT_EQ(result["linear"], "float32");
  EXPECT_GT(result["rates"]["product_tflops"], 0);
  EXPECT_TRUE(result["rates"]["fp8_product_tflops"].is_null());
  EXPECT_GT(result["rates"]["bandwidth_gb_s"], 0);
  EXPECT_GT(result["forward_backward_ratio"], 0);
  double sum = 0;
  for (const OrderedJson& op : result["ops"]) {
    sum += op["ms"].get<double>();
    EXPECT_FALSE(op["floor_ms"].is_null()) << op["op"];
    if (op["op"] == "qkv") {
      EXPECT_EQ(op["calls"], 4);  // There are two layers and two micro-batches.
    }
  }
  EXPECT_NEAR(result["ops_ms"].get<double>(), sum, 1e-9);  // The ops are sorted, so the order of the sum differs.
  EXPECT_NEAR(result["unexplained_ms"].get<double>(), result["profiled_step_ms"].get<double>() - sum, 1e-9);
  EXPECT_GE(result["unexplained_ms"], 0);  // The ops of a CPU run one after the other, so their times do not overlap.
}

}  // namespace
}  // namespace octavo
