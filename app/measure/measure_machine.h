// The measurements of `octavo doctor`. app/plan/machine_rates.h says what each number is.
#pragma once

#include <string>

#include "app/plan/machine_rates.h"
#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct MeasureOptions {
  std::string disk_dir = ".";  // written to and left as it was
  bool collectives = true;     // among the ranks, if there are several
};

// This rank's rates while all ranks measure the same; about half a minute on a GPU, seconds on the CPU, with sizes to
// fit. Takes a few GiB of a GPU's memory meanwhile, and the stream's workspace away. Does not set name,
// gpu_memory_bytes and versions. A collective; `hosts` is how many machines the ranks are on.
MachineRates measure_machine(const MeasureOptions& options, int hosts, ProcessGroup& group, Stream& stream);

}  // namespace octavo
