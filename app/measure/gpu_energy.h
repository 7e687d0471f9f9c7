// What a GPU draws and how fast its clock is while work runs, by the counters of its driver (NVML).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

namespace octavo {

struct GpuSample {
  double ms = 0;            // host_clock_ms()
  int64_t millijoules = 0;  // since the driver was loaded
  int64_t sm_mhz = 0;       // clock of the multiprocessors
};

class GpuCounters {
 public:
  // Opens the counters of the GPU at a place on the bus ("0000:1b:00.0"). Throws InputError where there is no such
  // driver library, GPU or counter.
  explicit GpuCounters(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1");
  GpuSample sample() const;

 private:
  void check(int status, const char* what) const;

  std::string bus_id_;
  std::unique_ptr<void, int (*)(void*)> library_;
  std::unique_ptr<int(), void (*)(int (*)())> shutdown_;
  void* device_ = nullptr;
  const char* (*error_)(int) = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
};

// Means over some time.
struct GpuUse {
  double watts = 0;
  double sm_mhz = 0;
};

// Returns the use between the first and the last move of the energy counter, which the driver updates every few tens of
// milliseconds. None where the counter moved once at most.
std::optional<GpuUse> gpu_use(std::span<const GpuSample> samples);

// Adds to the result of steps, which has step_ms, what `use`, the mean of `gpus`, means for them: sm_mhz, watts (of one
// GPU) and joules_per_token (of all GPUs, for the `tokens` of a step).
void add_energy(nlohmann::ordered_json& result, const GpuUse& use, int64_t gpus, int64_t tokens);

}  // namespace octavo
