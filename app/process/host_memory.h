// The amount of this machine's memory that a run may use: the least of what the kernel has available, what the control
// groups of this process allow (version 1 and 2; containers and batch systems set them), and what Slurm granted to the
// job. A process that exceeds its group's limit is killed when it first touches the memory, not when it asks for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/process/cores.h"

namespace octavo {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // Page cache counts as available, because the kernel gives it up.
  std::string limit;  // The file or variable that limits the memory. Empty if nothing allows less than the kernel has.

  // Returns " by the limit in FILE" for the end of a sentence about available_bytes, or an empty text without a limit.
  std::string describe_limit() const { return limit.empty() ? "" : " by the limit in " + limit; }
};

// Returns the memory of this machine for a run with `processes` ranks on it. Both numbers are the maximum of their type
// if the system does not say. `root` is where /proc and the control groups are mounted.
HostMemory host_memory(int processes, const Environment& environment = process_environment(),
                       const std::filesystem::path& root = "/");

}  // namespace octavo
