// Power and clock of a GPU, by the counters of its driver (NVML).
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace octavo {

struct GpuUse {
  double watts = 0;   // mean
  double sm_mhz = 0;  // clock of the multiprocessors
};

class GpuEnergy {
 public:
  // Opens the counters of the GPU at a place on the bus ("0000:1b:00.0"). Throws InputError where there is no such
  // driver library, GPU or counter.
  explicit GpuEnergy(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1");
  // Returns the mean power since the last use that was returned, and the clock now. Returns none if that was less than
  // `min_ms` ago: the driver updates the counter of energy every few tens of milliseconds. Throws as the constructor.
  std::optional<GpuUse> use(double min_ms = 0);

 private:
  std::unique_ptr<void, void (*)(void*)> library_;
  void* device_ = nullptr;
  double last_ms_ = 0;                       // host_clock_ms() when the energy was read
  unsigned long long last_millijoules_ = 0;  // since the driver was loaded
};

}  // namespace octavo
