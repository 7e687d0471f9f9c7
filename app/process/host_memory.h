// How much of this machine's memory a run may use: the least of what the kernel has available, what the control groups
// of this process allow (version 1 and 2; containers and batch systems set them) and what Slurm granted to the job. A
// process that takes more than its group's limit is killed when it first touches the memory, not when it asks for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/process/cores.h"

namespace octavo {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // page cache counts as available, as the kernel gives it up
  std::string limit;            // what allows less than the kernel has: a file or a variable; empty where nothing does

  // " by the limit in FILE" for the end of a sentence on available_bytes; empty where there is no limit.
  std::string describe_limit() const { return limit.empty() ? "" : " by the limit in " + limit; }
};

// The memory of this machine for a run with `processes` ranks on it. Both numbers are the largest there is where the
// system does not say. `root` is where /proc and the mounted control groups are found.
HostMemory host_memory(int processes, const Environment& environment = process_environment(),
                       const std::filesystem::path& root = "/");

}  // namespace octavo
