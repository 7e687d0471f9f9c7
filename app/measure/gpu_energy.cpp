#include "app/measure/gpu_energy.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/profiler.h"

namespace octavo {

// NVML's interface is declared here as far as it is used: not every toolkit has nvml.h. The driver brings the library.
GpuCounters::GpuCounters(const std::string& pci_bus_id, const std::string& library)
    : bus_id_(pci_bus_id),
      library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), dlclose),
      shutdown_(nullptr, [](int (*end)()) { end(); }) {
  CHECK_INPUT(library_ != nullptr, "--energy: the driver's library {} is not there, expected one that dlopen finds",
              library);
  const auto find = [&](const char* name, auto& function) {
    void* const found = dlsym(library_.get(), name);
    CHECK_INPUT(found != nullptr, "--energy: the driver's library has no {}, expected a driver of Hopper or newer",
                name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(found);
  };
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus_id)(const char*, void**) = nullptr;
  find("nvmlInit_v2", init);
  find("nvmlShutdown", shutdown);
  find("nvmlDeviceGetHandleByPciBusId_v2", by_bus_id);
  find("nvmlErrorString", error_);
  find("nvmlDeviceGetTotalEnergyConsumption", energy_);
  find("nvmlDeviceGetClockInfo", clock_);
  check(init(), "NVML");
  shutdown_.reset(shutdown);
  check(by_bus_id(pci_bus_id.c_str(), &device_), "the handle");
  sample();  // finds a GPU without counters before any work
}

void GpuCounters::check(int status, const char* what) const {
  CHECK_INPUT(status == 0, "--energy: NVML does not tell {} of GPU {}: {}", what, bus_id_, error_(status));
}

GpuSample GpuCounters::sample() const {
  constexpr int kSmClock = 1;  // NVML_CLOCK_SM
  unsigned mhz = 0;
  unsigned long long millijoules = 0;
  check(clock_(device_, kSmClock, &mhz), "the clock");
  check(energy_(device_, &millijoules), "the energy");
  return {.ms = host_clock_ms(), .millijoules = static_cast<int64_t>(millijoules), .sm_mhz = mhz};
}

std::optional<GpuUse> gpu_use(std::span<const GpuSample> samples) {
  size_t first = 0;  // where the counter has moved
  size_t last = 0;
  for (size_t i = 1; i < samples.size(); ++i) {
    if (samples[i].millijoules == samples[i - 1].millijoules) continue;
    if (first == 0) first = i;
    last = i;
  }
  if (first == last) return std::nullopt;
  double mhz = 0;
  for (const GpuSample& sample : samples.subspan(first, last - first)) mhz += static_cast<double>(sample.sm_mhz);
  // mJ / ms = W
  return GpuUse{.watts = static_cast<double>(samples[last].millijoules - samples[first].millijoules) /
                         (samples[last].ms - samples[first].ms),
                .sm_mhz = mhz / static_cast<double>(last - first)};
}

void add_energy(nlohmann::ordered_json& result, const GpuUse& use, int64_t gpus, int64_t tokens) {
  const double joules = use.watts * static_cast<double>(gpus) * result["step_ms"].get<double>() / 1e3;
  result["sm_mhz"] = use.sm_mhz;
  result["watts"] = use.watts;
  result["joules_per_token"] = joules / static_cast<double>(tokens);
}

}  // namespace octavo
