// Facts about the GPUs of a machine that nvidia-smi knows and CUDA does not tell: errors of their memory, and what
// slows their clocks down now.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct GpuHealth {
  std::string setting;                 // "driver 580.95, up to 1980 MHz, 700 W". Empty if unknown.
  int64_t uncorrected_errors = 0;      // Uncorrected errors of its memories since the last reset.
  bool remapping_pending = false;      // Whether the next reset will replace a row of its memory.
  bool remapping_failed = false;       // Whether a failed row could not be replaced.
  std::vector<std::string> slowdowns;  // Reasons for slow clocks as nvidia-smi names them: "HW Thermal Slowdown".
};

// Returns a bus id as the maps below use it, "0000:1b:00.0", from the id that CUDA or nvidia-smi prints.
std::string gpu_health_key(const std::string& bus_id);

// Returns the health by bus id. Values that nvidia-smi does not print keep their defaults. Empty without nvidia-smi.
// Takes a second or two.
std::map<std::string, GpuHealth> read_gpu_health();

// Parses the two outputs of nvidia-smi: `settings` is CSV (bus, driver, clock, power), and `report` is that of
// nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE, whose headings differ between drivers.
std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report);

}  // namespace octavo
