#include "app/measure/gpu_energy.h"

#include <dlfcn.h>

#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/profiler.h"
#include "core/thread.h"

namespace octavo {

namespace {

constexpr double kIntervalMs = 2;

// NVML's interface as far as it is used here, by nvml.h, which not every toolkit has. The driver brings the library, so
// it is loaded when it is asked for.
extern "C" {
using NvmlDevice = struct NvmlDeviceHandle*;
using NvmlInit = int (*)();
using NvmlShutdown = int (*)();
using NvmlErrorString = const char* (*)(int);
using NvmlHandleByBusId = int (*)(const char*, NvmlDevice*);
using NvmlTotalEnergy = int (*)(NvmlDevice, unsigned long long*);
using NvmlClock = int (*)(NvmlDevice, int, unsigned*);
}
constexpr int kSmClock = 1;  // NVML_CLOCK_SM

class NvmlCounters final : public GpuCounters {
 public:
  NvmlCounters(const std::string& pci_bus_id, const std::string& library)
      : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), dlclose), bus_id_(pci_bus_id) {
    CHECK_INPUT(library_ != nullptr, "--energy: the driver's library {} is not there, expected one that dlopen finds",
                library);
    const auto init = function<NvmlInit>("nvmlInit_v2");
    const auto by_bus_id = function<NvmlHandleByBusId>("nvmlDeviceGetHandleByPciBusId_v2");
    error_ = function<NvmlErrorString>("nvmlErrorString");
    energy_ = function<NvmlTotalEnergy>("nvmlDeviceGetTotalEnergyConsumption");
    clock_ = function<NvmlClock>("nvmlDeviceGetClockInfo");
    const auto shutdown = function<NvmlShutdown>("nvmlShutdown");
    check(init(), "NVML");
    shutdown_.reset(shutdown);
    check(by_bus_id(pci_bus_id.c_str(), &device_), "the handle");
    millijoules();  // a GPU without the counter is found before all else
    sm_mhz();
  }

  int64_t millijoules() override {
    unsigned long long value = 0;
    check(energy_(device_, &value), "the energy");
    return static_cast<int64_t>(value);
  }

  int64_t sm_mhz() override {
    unsigned value = 0;
    check(clock_(device_, kSmClock, &value), "the clock");
    return value;
  }

 private:
  template <typename Function>
  Function function(const char* name) const {
    void* const found = dlsym(library_.get(), name);
    CHECK_INPUT(found != nullptr, "--energy: the driver's library has no {}, expected a driver of Hopper or newer",
                name);
    return reinterpret_cast<Function>(found);
  }

  void check(int status, const char* what) const {
    CHECK_INPUT(status == 0, "--energy: NVML does not tell {} of GPU {}: {}", what, bus_id_, error_(status));
  }

  std::unique_ptr<void, int (*)(void*)> library_;
  std::string bus_id_;
  std::unique_ptr<int(), void (*)(NvmlShutdown)> shutdown_{nullptr, [](NvmlShutdown end) { end(); }};
  NvmlErrorString error_ = nullptr;
  NvmlTotalEnergy energy_ = nullptr;
  NvmlClock clock_ = nullptr;
  NvmlDevice device_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuCounters> open_gpu_counters(const std::string& pci_bus_id, const std::string& library) {
  return std::make_unique<NvmlCounters>(pci_bus_id, library);
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

GpuSampler::GpuSampler(GpuCounters& counters)
    : counters_(counters), thread_(start_thread("the energy of the GPU", [this] { sample(); })) {}

GpuSampler::~GpuSampler() {
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
}

void GpuSampler::sample() {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  try {
    for (const double begin = host_clock_ms(); !stopped_; std::this_thread::sleep_for(Milliseconds(kIntervalMs))) {
      if (host_clock_ms() - begin < kSettleMs) continue;
      const int64_t mhz = counters_.sm_mhz();
      const int64_t millijoules = counters_.millijoules();
      samples_.push_back({.ms = host_clock_ms(), .millijoules = millijoules, .sm_mhz = mhz});
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::vector<GpuSample> GpuSampler::stop() {
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return std::move(samples_);
}

void add_energy(nlohmann::ordered_json& result, const GpuUse& use, int64_t gpus, int64_t tokens) {
  const double joules = use.watts * static_cast<double>(gpus) * result["step_ms"].get<double>() / 1e3;
  result["sm_mhz"] = use.sm_mhz;
  result["watts"] = use.watts;
  result["joules_per_token"] = joules / static_cast<double>(tokens);
}

}  // namespace octavo
