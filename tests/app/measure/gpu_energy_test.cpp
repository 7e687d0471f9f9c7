// Energy: power and clock of samples, and the driver's library, of which there is a fake.
#include "app/measure/gpu_energy.h"

#include <cmath>

#include "core/error.h"

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

TEST(GpuCounters, ReadTheDriversLibrary) {
  const GpuCounters counters(kBusId, OCTAVO_FAKE_NVML);
  const GpuSample before = counters.sample();
  const GpuSample after = counters.sample();
  EXPECT_EQ(after.sm_mhz, 1755);
  EXPECT_EQ(after.millijoules - before.millijoules, 500'000);
  EXPECT_GE(after.ms, before.ms);
}

TEST(GpuCounters, SayWhatIsMissing) {
  const auto refusal = [](const std::string& bus_id, const std::string& library) -> std::string {
    try {
      const GpuCounters counters(bus_id, library);
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

}  // namespace
}  // namespace octavo
