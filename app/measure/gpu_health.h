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
  std::string setting;                 // "driver 580.95, up to 1980 MHz, 700 W"; empty when unknown
  int64_t uncorrected_errors = 0;      // of its memories, since it was last reset
  bool remapping_pending = false;      // a row of its memory is to be replaced at the next reset
  bool remapping_failed = false;       // there was no row to replace it with
  std::vector<std::string> slowdowns;  // of the clocks, as nvidia-smi names them: "HW Thermal Slowdown"
};

// A place on the bus as the maps below name it, "0000:1b:00.0", from what CUDA or nvidia-smi calls it.
std::string gpu_health_key(const std::string& bus_id);

// By places on the bus. What nvidia-smi does not say is left as it is above; none
// where there is no nvidia-smi. Takes a second or two.
std::map<std::string, GpuHealth> read_gpu_health();

// The two answers that it is made from: `settings` is CSV (bus, driver, clock, power), `report` that of
// nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE, whose headings differ between drivers.
std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report);

}  // namespace octavo
