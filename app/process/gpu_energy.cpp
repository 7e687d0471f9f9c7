#include "app/process/gpu_energy.h"

#include <dlfcn.h>

#include <utility>

#include "core/error.h"
#include "core/profiler.h"

namespace octavo {

namespace {

// Calls a function of NVML, found by its name in the driver's library. The arguments declare its type, because not
// every CUDA toolkit has nvml.h.
template <typename... Arguments>
void call(void* library, const char* function, Arguments... arguments) {
  void* const found = dlsym(library, function);
  CHECK_INPUT(found != nullptr, "--energy: the driver's library has no {}, expected a driver for Hopper or newer",
              function);
  const int status = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  CHECK_INPUT(status == 0, "--energy: {} fails: {}", function,
              reinterpret_cast<const char* (*)(int)>(dlsym(library, "nvmlErrorString"))(status));
}

}  // namespace

GpuEnergy::GpuEnergy(const std::string& pci_bus_id, const std::string& library)
    : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* opened) {
        if (void* const shutdown = dlsym(opened, "nvmlShutdown")) reinterpret_cast<int (*)()>(shutdown)();
        dlclose(opened);
      }) {
  CHECK_INPUT(library_ != nullptr, "--energy: the driver's library {} was not found, expected it on the library path",
              library);
  call(library_.get(), "nvmlInit_v2");
  call(library_.get(), "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &device_);
  use();
}

std::optional<GpuUse> GpuEnergy::use(double min_ms) {
  constexpr int kSmClock = 1;  // Value of NVML_CLOCK_SM in nvml.h.
  const double ms = host_clock_ms() - last_ms_;
  if (ms < min_ms) return std::nullopt;
  unsigned mhz = 0;
  unsigned long long millijoules = 0;
  call(library_.get(), "nvmlDeviceGetClockInfo", device_, kSmClock, &mhz);
  call(library_.get(), "nvmlDeviceGetTotalEnergyConsumption", device_, &millijoules);
  last_ms_ += ms;
  return GpuUse{.watts = static_cast<double>(millijoules - std::exchange(last_millijoules_, millijoules)) / ms,
                .sm_mhz = static_cast<double>(mhz)};
}

}  // namespace octavo
