// Energy: power and clock of samples, the thread that takes them, and the driver's library, of which there is a fake.
#include "app/measure/gpu_energy.h"

#include <cmath>

#include "app/measure/bench_ops.h"
#include "core/error.h"
#include "core/profiler.h"

namespace octavo {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr const char* kBusId = "0000:1b:00.0";

// A GPU whose counter moves every `update_ms`, by what `watts` were until then; at 1,000 MHz and 1 more for each watt.
std::vector<GpuSample> samples(double update_ms, double interval_ms, double end_ms, double watts, double begin_ms = 0) {
  std::vector<GpuSample> all;
  for (double ms = begin_ms; ms < begin_ms + end_ms; ms += interval_ms) {
    const double counted_ms = std::floor(ms / update_ms) * update_ms;
    all.push_back({ms, std::llround(counted_ms * watts), 1000 + static_cast<int64_t>(watts)});
  }
  return all;
}

TEST(GpuUse, IsOfTheTimeBetweenMoves) {
  // 700 W, counted every 100 ms and read every 2: of 1,050 ms from the middle of an interval on.
  const std::optional<GpuUse> use = gpu_use(samples(100, 2, 1050, 700, 3033));
  ASSERT_TRUE(use);
  EXPECT_NEAR(use->watts, 700, 700 * 2 / 900.0);  // the first minus the last value over all of the time: 667
  EXPECT_DOUBLE_EQ(use->sm_mhz, 1700);
}

TEST(GpuUse, TakesTheClockOfTheSameTime) {
  const std::vector<GpuSample> all{{0, 5, 90}, {10, 5, 90}, {20, 105, 10}, {30, 105, 20}, {40, 305, 99}, {50, 305, 90}};
  const std::optional<GpuUse> use = gpu_use(all);
  ASSERT_TRUE(use);
  EXPECT_DOUBLE_EQ(use->watts, 10);  // 200 mJ in 20 ms
  EXPECT_DOUBLE_EQ(use->sm_mhz, 15);
}

TEST(GpuUse, NeedsTwoMoves) {
  EXPECT_FALSE(gpu_use({}));
  EXPECT_FALSE(gpu_use(samples(100, 2, 90, 700, 1)));
  EXPECT_FALSE(gpu_use(samples(100, 2, 190, 700, 1)));
  EXPECT_TRUE(gpu_use(samples(100, 2, 290, 700, 1)));
}

TEST(GpuEnergy, IsOfAllTokensAndGpus) {
  OrderedJson result{{"step_ms", 250.0}};
  add_energy(result, {.watts = 600, .sm_mhz = 1500}, 8, 4000);
  EXPECT_DOUBLE_EQ(result["joules_per_token"], 0.3);  // 4,800 W for a quarter of a second
  EXPECT_DOUBLE_EQ(result["watts"], 600);
  EXPECT_DOUBLE_EQ(result["sm_mhz"], 1500);
}

TEST(GpuEnergy, OfOps) {
  OrderedJson result{
      {"ops", {{{"op", "qkv"}, {"ms", 20.0}}, {{"op", "adamw"}, {"ms", 2.0}}, {{"op", "all_reduce"}, {"ms", 1.0}}}}};
  add_op_energy(result, {{"qkv", GpuUse{.watts = 700, .sm_mhz = 1400}}, {"adamw", std::nullopt}});
  EXPECT_DOUBLE_EQ(result["ops"][0]["joules"], 14);
  EXPECT_DOUBLE_EQ(result["ops"][0]["watts"], 700);
  EXPECT_DOUBLE_EQ(result["ops"][0]["sm_mhz"], 1400);
  for (const size_t unknown : {1u, 2u}) {
    for (const char* key : {"joules", "watts", "sm_mhz"}) EXPECT_TRUE(result["ops"][unknown][key].is_null()) << key;
  }
}

TEST(GpuEnergy, OfOpsIsPrinted) {
  OrderedJson result{
      {"rates", {{"product_tflops", 700.0}, {"fp8_product_tflops", nullptr}, {"bandwidth_gb_s", 4000.0}}},
      {"profiled_step_ms", 25.0},
      {"ops", OrderedJson::array()}};
  result["ops"].push_back({{"op", "qkv"}, {"calls", 2}, {"ms", 20.0}, {"share", 0.8}, {"tflops", 1.0}, {"gb_s", 1.0}});
  for (const char* key : {"ops_ms", "floor_ms", "unexplained_ms", "forward_backward_ms", "forward_backward_ratio",
                          "products_and_attention_floor_ms", "products_and_attention_ms"}) {
    result[key] = 1.0;
  }
  result["ops"][0].update({{"fp8", false}, {"floor_ms", nullptr}, {"ratio", nullptr}});
  const auto printed = [&] {
    testing::internal::CaptureStdout();
    print_floor_table(result);
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(printed().find("MHz"), std::string::npos);
  add_op_energy(result, {{"qkv", GpuUse{.watts = 712.4, .sm_mhz = 1401.6}}});
  EXPECT_NE(printed().find("   MHz      W        J\n"), std::string::npos) << printed();
  EXPECT_NE(printed().find("   1402    712   14.248\n"), std::string::npos) << printed();
}

TEST(GpuCounters, ReadTheDriversLibrary) {
  const std::unique_ptr<GpuCounters> counters = open_gpu_counters(kBusId, OCTAVO_FAKE_NVML);
  EXPECT_EQ(counters->sm_mhz(), 1755);
  const int64_t before = counters->millijoules();
  EXPECT_EQ(counters->millijoules() - before, 500'000);
}

TEST(GpuCounters, SayWhatIsMissing) {
  const auto refusal = [](const std::string& bus_id, const std::string& library) -> std::string {
    try {
      open_gpu_counters(bus_id, library);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal("0000:1c:00.0", OCTAVO_FAKE_NVML),
            "--energy: NVML does not tell the handle of GPU 0000:1c:00.0: Not Found");
  EXPECT_EQ(refusal(kBusId, "libno_such_driver.so"),
            "--energy: the driver's library libno_such_driver.so is not there, expected one that dlopen finds");
  EXPECT_EQ(refusal(kBusId, "libm.so.6"),
            "--energy: the driver's library has no nvmlInit_v2, expected a driver of Hopper or newer");
  EXPECT_EQ(refusal(kBusId, OCTAVO_FAKE_NVML), "none");  // a refusal leaves nothing behind
}

TEST(GpuSampler, SamplesOnceTheWorkHasSettled) {
  const std::unique_ptr<GpuCounters> counters = open_gpu_counters(kBusId, OCTAVO_FAKE_NVML);
  const double begin = host_clock_ms();
  GpuSampler sampler(*counters);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<GpuSample> taken = sampler.stop();
  ASSERT_GE(taken.size(), 3u);
  EXPECT_GE(taken.front().ms - begin, GpuSampler::kSettleMs);
  for (size_t i = 1; i < taken.size(); ++i) {
    EXPECT_GT(taken[i].ms, taken[i - 1].ms);
    EXPECT_EQ(taken[i].millijoules - taken[i - 1].millijoules, 500'000);
  }
}

TEST(GpuSampler, ThrowsWhatReadingThrew) {
  class Lost final : public GpuCounters {
   public:
    int64_t millijoules() override { throw Error("the GPU is lost"); }
    int64_t sm_mhz() override { return 1; }
  };
  Lost lost;
  GpuSampler sampler(lost);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THROW(sampler.stop(), Error);
}

}  // namespace
}  // namespace octavo
