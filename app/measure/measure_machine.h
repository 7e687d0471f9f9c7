// The measurements of `octavo doctor`. app/plan/machine_rates.h says what each number is.
#pragma once

#include <string>

#include "app/plan/machine_rates.h"
#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct MeasureOptions {
  std::string disk_dir = ".";  // Directory that is written to and left unchanged.
  bool collectives = true;     // Whether to measure collectives, if there are several ranks.
};

// Returns this rank's rates while all ranks measure the same things. Takes about half a minute on a GPU, and seconds on
// the CPU, where sizes are smaller. Temporarily takes a few GiB of a GPU's memory, and removes the stream's workspace.
// Does not set name, gpu_memory_bytes and versions. A collective. `hosts` is the number of machines.
MachineRates measure_machine(const MeasureOptions& options, int hosts, ProcessGroup& group, Stream& stream);

}  // namespace octavo
