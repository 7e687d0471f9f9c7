// Measures the rates of this device and machine, for `octavo bench --ops` and `octavo doctor`.
// app/predict/machine_rates.h defines each rate.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/predict/machine_rates.h"
#include "core/profiler.h"
#include "core/stream.h"
#include "model/architecture/precision.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct DeviceRates {
  double matmul = 0;      // FLOP/s of a large matmul in the compute dtype.
  double fp8_matmul = 0;  // FLOP/s of a large FP8 matmul with the config's recipe. 0 without FP8.
  double bandwidth = 0;   // Bytes/s of a large copy, counting bytes read and written.
};

// Returns the medians over runs with random data that are long enough for the GPU's clock to settle. Takes well under a
// second on a GPU. Temporarily allocates a few GiB of the GPU's memory, and removes the stream's workspace.
DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream);

// Returns the time of each of `runs` runs in seconds.
std::vector<double> time_each(int64_t runs, const std::function<void()>& work, Stream& stream);

// Returns a lower bound for the time of an op in milliseconds, from its FLOPs and bytes at these rates. Returns 0 for
// communication, which these rates do not bound.
double floor_ms(const Profiler::Total& total, const DeviceRates& rates);

// Returns this rank's rates, while all ranks measure at the same time. Takes about half a minute on a GPU, and seconds
// on the CPU, where sizes are smaller. Temporarily allocates a few GiB of the GPU's memory, and removes the stream's
// workspace. Does not set name, gpu_memory_bytes, collectives->hosts and versions. A temporary file in `disk_dir`
// measures the write speed. `collectives` says whether to measure collectives if there are several ranks. A collective.
MachineRates measure_machine(const std::string& disk_dir, bool collectives, ProcessGroup& group, Stream& stream);

}  // namespace octavo
