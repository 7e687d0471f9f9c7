#include "app/measure/gpu_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

namespace octavo {

namespace {

std::string output_of(const char* command) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char piece[4096];
  while (pipe && std::fgets(piece, sizeof(piece), pipe.get()) != nullptr) text += piece;
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

void parse_settings(std::string_view settings, std::map<std::string, GpuHealth>& gpus) {
  std::istringstream lines{std::string(settings)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string bus, driver, clock, power;
    if (!std::getline(fields, bus, ',') || !std::getline(fields, driver, ',') || !std::getline(fields, clock, ',') ||
        !std::getline(fields, power, ',')) {
      continue;
    }
    gpus[gpu_health_key(trimmed(bus))].setting =
        fmt::format("driver {}, up to {}, {}", trimmed(driver), trimmed(clock), trimmed(power));
  }
}

void read_line(const std::string& section, const std::string& key, const std::string& value, GpuHealth& gpu) {
  const bool uncorrectable = key.find("Uncorrectable") != std::string::npos;
  if (section == "Volatile" && uncorrectable) gpu.uncorrected_errors += std::strtoll(value.c_str(), nullptr, 10);
  if (section == "Remapped Rows" && key == "Pending") gpu.remapping_pending = value == "Yes";
  if (section == "Remapped Rows" && key == "Remapping Failure Occurred") gpu.remapping_failed = value == "Yes";
  // "HW Slowdown" is skipped, because it is set with any of the specific HW reasons.
  const bool slows = key.ends_with("Slowdown") && key != "HW Slowdown";
  if (slows && value == "Active") gpu.slowdowns.push_back(key);
}

}  // namespace

// nvidia-smi prints eight digits of the PCI domain, and CUDA four.
std::string gpu_health_key(const std::string& bus_id) {
  constexpr size_t kLength = 12;
  std::string key = bus_id.size() > kLength ? bus_id.substr(bus_id.size() - kLength) : bus_id;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report) {
  std::map<std::string, GpuHealth> gpus;
  parse_settings(settings, gpus);
  std::istringstream lines{std::string(report)};
  GpuHealth* gpu = nullptr;
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(" : ");
    if (line.starts_with("GPU ")) {
      gpu = &gpus[gpu_health_key(trimmed(line.substr(4)))];
    } else if (colon == std::string::npos) {
      section = trimmed(line);
    } else if (gpu != nullptr) {
      read_line(section, trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 3)), *gpu);
    }
  }
  return gpus;
}

std::map<std::string, GpuHealth> read_gpu_health() {
  const std::string settings = output_of(
      "nvidia-smi --query-gpu=pci.bus_id,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null");
  if (settings.empty()) return {};
  return parse_gpu_health(settings, output_of("nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE 2>/dev/null"));
}

}  // namespace octavo
