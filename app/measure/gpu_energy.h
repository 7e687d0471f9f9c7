// What a GPU draws and how fast its clock is while work runs, by the counters of its driver (NVML).
//
// The driver adds to its counter of energy every few tens of milliseconds what was used since, so the power is what the
// counter grew from one of its moves to another, over the time between: right to about a sampling interval of that
// time, however coarse the moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace octavo {

class GpuCounters {
 public:
  virtual ~GpuCounters() = default;
  virtual int64_t millijoules() = 0;  // since the driver was loaded
  virtual int64_t sm_mhz() = 0;       // now, of the multiprocessors
};

// Of the GPU at a place on the bus ("0000:1b:00.0"), whose driver's `library` is loaded. Throws InputError where there
// is no such library, GPU or counter.
std::unique_ptr<GpuCounters> open_gpu_counters(const std::string& pci_bus_id,
                                               const std::string& library = "libnvidia-ml.so.1");

struct GpuSample {
  double ms = 0;
  int64_t millijoules = 0;
  int64_t sm_mhz = 0;
};

// Means over some time.
struct GpuUse {
  double watts = 0;
  double sm_mhz = 0;
};

// From the first to the last move of the counter; none where it moved once at most.
std::optional<GpuUse> gpu_use(std::span<const GpuSample> samples);

// Reads `counters`, which must outlive it, on a thread from kSettleMs after its beginning on: by then the clock and the
// counter tell of the work.
class GpuSampler {
 public:
  static constexpr double kSettleMs = 100;

  explicit GpuSampler(GpuCounters& counters);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;
  // Ends the thread. Throws what reading threw.
  std::vector<GpuSample> stop();

 private:
  void sample();

  GpuCounters& counters_;
  std::atomic<bool> stopped_ = false;
  std::exception_ptr failure_;
  std::vector<GpuSample> samples_;
  std::thread thread_;  // last: it uses the others
};

// Adds to the result of steps, step_ms, what `use`, the mean of `gpus`, means for them: sm_mhz, watts (a GPU's) and
// joules_per_token (all GPUs', of the `tokens` of a step).
void add_energy(nlohmann::ordered_json& result, const GpuUse& use, int64_t gpus, int64_t tokens);

}  // namespace octavo
