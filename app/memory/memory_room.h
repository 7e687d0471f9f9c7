// The amount of a device's memory that a run may allocate. Mode auto chooses and runs are refused by this one rule, in
// runs and in plans.
//
//   arena + outside + margin <= available
//
//              when a run decides                              in a plan
//   available  what is free: the CUDA context and the          what the device has
//              communicators have taken theirs already
//   outside    what libraries still take after that            all that they take
//   margin     1.5 GiB of a GPU; of the CPU's memory a twentieth
//
// A run that has its GPUs to itself decides exactly like a plan for the same number of GPUs.
#pragma once

#include <cstdint>
#include <optional>

#include "app/config/config.h"
#include "app/process/runtime.h"

namespace octavo {

// The device of a rank.
struct PlannedDevice {
  Device device = Device::kCuda;
  int multiprocessors = 132;
  int64_t memory_bytes = 0;  // all of a GPU's; 0: unknown, then everything fits
  // Free memory of the GPU when a run decides. None in a plan.
  std::optional<int64_t> free_bytes = std::nullopt;
  int64_t gpus_per_node = 8;
};

// Returns this rank's device in a run, with the memory that is free now.
PlannedDevice own_device(const Runtime& runtime);

// Returns the device before there are communicators, as a plan has it: memory that others hold is not the run's.
PlannedDevice unused_device(const Runtime& runtime);

struct MemoryRoom {
  int64_t available = 0;  // 0 means unknown; everything fits then.
  int64_t outside = 0;
  int64_t margin = 0;
  int64_t needed(int64_t arena_bytes) const { return arena_bytes + outside + margin; }
  bool fits(int64_t arena_bytes) const { return available == 0 || needed(arena_bytes) <= available; }
};

// Returns the budget of a run of `config` on the mesh, each rank on such a device.
MemoryRoom memory_room(const Config& config, const MeshShape& mesh, const PlannedDevice& device);
// Returns the budget of a run under way.
MemoryRoom memory_room(const Config& config, const Runtime& runtime);

}  // namespace octavo
