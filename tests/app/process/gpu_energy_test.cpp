// Tests of reading power and clock of a GPU from a fake NVML library.
#include "app/process/gpu_energy.h"

#include <chrono>
#include <thread>

#include "core/error.h"

namespace octavo {
namespace {

constexpr const char* kBusId = "0000:1b:00.0";

TEST(GpuEnergy, IsPowerSinceTheLastReading) {
  GpuEnergy energy(kBusId, OCTAVO_FAKE_NVML);
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::optional<GpuUse> use = energy.use(2);
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(use);
  EXPECT_EQ(use->sm_mhz, 1755);
  EXPECT_GE(use->watts, 500'000 / (ms + 1));  // The counter grows by 500 J per reading.
  EXPECT_LE(use->watts, 500'000 / 5.0);
}

TEST(GpuEnergy, IsNotReadTooOften) {
  GpuEnergy energy(kBusId, OCTAVO_FAKE_NVML);
  EXPECT_FALSE(energy.use(60'000));
  // A refused reading does not reset the time of the last reading.
  EXPECT_FALSE(energy.use(60'000));
  EXPECT_TRUE(energy.use());
}

TEST(GpuEnergy, SaysWhatIsMissing) {
  const auto refusal = [](const std::string& bus_id, const std::string& library) -> std::string {
    try {
      GpuEnergy energy(bus_id, library);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal("0000:1c:00.0", OCTAVO_FAKE_NVML), "--energy: nvmlDeviceGetHandleByPciBusId_v2 fails: Not Found");
  EXPECT_EQ(refusal(kBusId, "libno_such_driver.so"),
            "--energy: the driver's library libno_such_driver.so was not found, expected it on the library path");
  EXPECT_EQ(refusal(kBusId, "libm.so.6"),
            "--energy: the driver's library has no nvmlInit_v2, expected a driver for Hopper or newer");
  EXPECT_EQ(refusal(kBusId, OCTAVO_FAKE_NVML), "none");  // A refused GPU leaves the library as it was.
}

}  // namespace
}  // namespace octavo
