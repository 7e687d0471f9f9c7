// Power and clock of a GPU, from the counters of its driver (NVML).
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace octavo {

struct GpuUse {
  double watts = 0;   // Average power.
  double sm_mhz = 0;  // Clock of the multiprocessors.
};

class GpuEnergy {
 public:
  // Opens the counters of the GPU with that bus id ("0000:1b:00.0"). Throws an InputError if there is no such driver
  // library, GPU or counter.
  explicit GpuEnergy(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1");
  // Returns the average power since the last returned use, and the current clock. Returns nothing if that was less than
  // `min_ms` ago, because the driver updates the counter of energy every few tens of milliseconds. Throws like the
  // constructor.
  std::optional<GpuUse> use(double min_ms = 0);

 private:
  std::unique_ptr<void, void (*)(void*)> library_;
  void* device_ = nullptr;
  double last_ms_ = 0;                       // host_clock_ms() at which the energy was read.
  unsigned long long last_millijoules_ = 0;  // Energy since the driver was loaded.
};

}  // namespace octavo
