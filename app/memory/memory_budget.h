// The memory budget of a run on a device. Mode auto, and the check whether a run fits, use this one rule both in runs
// and in plans:
//
//   arena + outside + margin <= available
//
//              when a run decides                              in a plan
//   available  free memory; the CUDA context and the           all memory of the device
//              communicators are already allocated
//   outside    what libraries will still allocate              everything that libraries allocate
//   margin     1.5 GiB of a GPU, or 5% of the CPU's memory     the same
//
// A run that has its GPUs to itself decides exactly like a plan for the same number of GPUs.
#pragma once

#include <cstdint>
#include <optional>

#include "app/config/config.h"
#include "app/process/runtime.h"

namespace octavo {

// The device of a rank, of a run or of a plan.
struct PlannedDevice {
  Device device = Device::kCuda;
  int multiprocessors = 132;
  int64_t memory_bytes = 0;  // Total memory of the GPU in bytes. 0 if unknown; then everything fits.
  // Free memory of the GPU when a run decides. Empty in a plan.
  std::optional<int64_t> free_bytes = std::nullopt;
  int64_t gpus_per_node = 8;
};

// Returns this rank's device in a run, with the memory that is free now.
PlannedDevice own_device(const Runtime& runtime);

// Returns this rank's device before communicators exist, like a plan: free memory is not measured.
PlannedDevice unused_device(const Runtime& runtime);

struct MemoryBudget {
  int64_t available = 0;  // Memory that may be allocated, in bytes. 0 if unknown; then everything fits.
  int64_t outside = 0;
  int64_t margin = 0;
  int64_t needed(int64_t arena_bytes) const { return arena_bytes + outside + margin; }
  bool fits(int64_t arena_bytes) const { return available == 0 || needed(arena_bytes) <= available; }
};

// Returns the memory budget of a run of `config` on the mesh, with one such device per rank.
MemoryBudget memory_budget(const Config& config, const MeshShape& mesh, const PlannedDevice& device);
// Returns the memory budget of the run in progress.
MemoryBudget memory_budget(const Config& config, const Runtime& runtime);

}  // namespace octavo
