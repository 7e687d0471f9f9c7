// The memory of a run, item by item, for any number of ranks and without a GPU: the same TrainingState that a run
// allocates, laid out in a planning arena on a dry-run stream, among dry-run communicators. Exact, except for cuDNN's
// workspace of a GPU (kernels/attention/sdpa.h) and for what lies outside the arena (app/memory/memory_room.h), which
// are estimates.
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/memory/memory_room.h"
#include "app/memory/training_options.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

const char* lifetime_name(Lifetime lifetime);  // Returns "whole run", "one step" or "one block".

// All tensors with one name.
struct MemoryItem {
  std::string name;
  int64_t count = 0;
  int64_t bytes = 0;
  Lifetime lifetime = Lifetime::kRun;
  Contents contents = Contents::kOther;
  std::vector<int64_t> blocks = {};  // Block or slot of each tensor (Arena::Item).
};

struct MemoryPlan {
  ShardingOptions sharding;  // Options chosen by the available memory.
  ActivationCheckpointing checkpointing;
  // Items of the arena, the largest first. The padding between tensors is the last item.
  std::vector<MemoryItem> items;
  std::vector<MemoryItem> overlaid;  // Items that use the memory of these at other times.
  int64_t arena_bytes = 0;           // Sum of the items, which is what the run allocates.
  MemoryRoom room;
  int64_t total_bytes() const { return arena_bytes + room.outside; }
  bool fits() const { return room.fits(arena_bytes); }
};

// Returns what `octavo train` allocates on rank 0 of the mesh, which has as much as any. `config` must be resolved for
// the device (resolve_device) and valid for mesh.ranks() ranks; `group` is this process's alone.
MemoryPlan plan_memory(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group);
// Plans the memory of a rank whose choices are made.
MemoryPlan plan_memory(const TrainingOptions& options, const Mesh& mesh, const MemoryRoom& room);
// Returns the bytes of the rank's arena.
int64_t planned_bytes(const TrainingOptions& options, const Mesh& mesh);
// Returns the bytes without those of validation: of the state, or of the state with linears in bfloat16 if
// precision.guard needs it and it is larger.
int64_t state_bytes(const TrainingOptions& options, const Mesh& mesh);

// Return whether precision.guard compares FP8 with bfloat16, and the config with linears in bfloat16.
bool has_precision_guard(const Config& config);
Config without_fp8(const Config& config);

}  // namespace octavo
