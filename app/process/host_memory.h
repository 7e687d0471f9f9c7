// Finds how much of this machine's memory a run may use: the minimum of the memory that the kernel reports as
// available, the limits of this process's control groups (version 1 and 2; containers and batch systems set them), and
// Slurm's grant to the job. A process that exceeds the limit of its group is killed when it first writes to the memory,
// not when it allocates it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/process/cores.h"

namespace octavo {

struct HostMemory {
  int64_t total_bytes = 0;
  // Bytes that can still be allocated. Page cache counts as available, because the kernel can free it.
  int64_t available_bytes = 0;
  std::string limit;  // File or variable that limits the memory, or empty if nothing allows less than the kernel has.

  // Returns " by the limit in FILE", which completes a sentence about available_bytes, or an empty text without a
  // limit.
  std::string describe_limit() const { return limit.empty() ? "" : " by the limit in " + limit; }
};

// Returns the memory of this machine for a run with `processes` ranks on it. Both numbers are the maximum of their type
// if the system does not say. `root` is where /proc and the control groups are mounted.
HostMemory host_memory(int processes, const Environment& environment = process_environment(),
                       const std::filesystem::path& root = "/");

}  // namespace octavo
