// The measurements of `octavo doctor`. app/plan/machine_rates.h defines each rate.
#pragma once

#include <string>

#include "app/plan/machine_rates.h"
#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct MeasureOptions {
  std::string disk_dir = ".";  // Directory whose write speed is measured with a temporary file.
  bool collectives = true;     // Whether to measure collectives if there are several ranks.
};

// Returns this rank's rates, while all ranks measure at the same time. Takes about half a minute on a GPU, and seconds
// on the CPU, where sizes are smaller. Temporarily allocates a few GiB of the GPU's memory, and removes the stream's
// workspace. Does not set name, gpu_memory_bytes and versions. `hosts` is the number of hosts. A collective.
MachineRates measure_machine(const MeasureOptions& options, int hosts, ProcessGroup& group, Stream& stream);

}  // namespace octavo
