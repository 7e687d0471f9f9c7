// Facts about the GPUs of a machine that nvidia-smi reports and CUDA does not: memory errors, and why clocks are slow
// at the moment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct GpuHealth {
  std::string setting;             // Text such as "driver 580.95, up to 1980 MHz, 700 W". Empty if unknown.
  int64_t uncorrected_errors = 0;  // Uncorrected memory errors since the last reset.
  bool remapping_pending = false;  // Whether the next reset will remap a row of the memory.
  bool remapping_failed = false;   // Whether remapping a faulty row failed.
  // Reasons for slow clocks with nvidia-smi's names, such as "HW Thermal Slowdown".
  std::vector<std::string> slowdowns;
};

// Converts a PCI bus id that CUDA or nvidia-smi prints to the form of the keys below, "0000:1b:00.0".
std::string gpu_health_key(const std::string& bus_id);

// Returns the health of each GPU by bus id. Values that nvidia-smi does not print keep their defaults. Empty if
// nvidia-smi does not exist. Takes one or two seconds.
std::map<std::string, GpuHealth> read_gpu_health();

// Parses two outputs of nvidia-smi. `settings` is CSV (bus, driver, clock, power), and `report` is the output of
// nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE, whose headings differ between drivers.
std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report);

}  // namespace octavo
