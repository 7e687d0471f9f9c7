// Measures power and clock of a GPU with the driver's counters (NVML).
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace octavo {

struct GpuUse {
  double watts = 0;   // Average power in watts.
  double sm_mhz = 0;  // Clock of the multiprocessors in MHz.
};

class GpuEnergy {
 public:
  // Opens the counters of the GPU with the PCI bus id `pci_bus_id` ("0000:1b:00.0"). Throws an InputError if the
  // driver's library, the GPU or the counter is missing.
  explicit GpuEnergy(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1");
  // Returns the average power since the previous result, and the current clock. Returns nothing if the previous result
  // is less than `min_ms` old, because the driver updates its energy counter only every few tens of milliseconds.
  // Throws like the constructor.
  std::optional<GpuUse> use(double min_ms = 0);

 private:
  std::unique_ptr<void, void (*)(void*)> library_;
  void* device_ = nullptr;
  double last_ms_ = 0;                       // Time of the last reading, from host_clock_ms().
  unsigned long long last_millijoules_ = 0;  // Energy at the last reading, counted from the loading of the driver.
};

}  // namespace octavo
