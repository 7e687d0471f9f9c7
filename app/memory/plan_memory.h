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

const char* lifetime_name(Lifetime lifetime);  // "whole run", "one step", "one block"

// All tensors of one name.
struct MemoryItem {
  std::string name;
  int64_t count = 0;
  int64_t bytes = 0;
  Lifetime lifetime = Lifetime::kRun;
  Contents contents = Contents::kOther;
  std::vector<int64_t> blocks = {};  // of each tensor that a block or slot has (Arena::Item)
};

struct MemoryPlan {
  ShardingOptions sharding;  // as chosen for the memory there is
  ActivationCheckpointing checkpointing;
  std::vector<MemoryItem> items;     // of the arena, the largest first; the padding between tensors is the last
  std::vector<MemoryItem> overlaid;  // in memory of these, at other times
  int64_t arena_bytes = 0;           // the sum of the items, what the run allocates
  MemoryRoom room;
  int64_t total_bytes() const { return arena_bytes + room.outside; }
  bool fits() const { return room.fits(arena_bytes); }
};

// Returns what `octavo train` allocates on rank 0 of the mesh, which has as much as any. `config` must be resolved for
// the device (resolve_device) and valid for mesh.ranks() ranks; `group` is this process's alone.
MemoryPlan plan_memory(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group);
// Plans the memory of a rank whose choices are made.
MemoryPlan plan_memory(const TrainingOptions& options, const Mesh& mesh, const MemoryRoom& room);
// The bytes of its arena.
int64_t planned_bytes(const TrainingOptions& options, const Mesh& mesh);
// Without what validation needs: of the state, or of that in bfloat16 where precision.guard asks for it and it is
// larger.
int64_t state_bytes(const TrainingOptions& options, const Mesh& mesh);

// Whether precision.guard compares linears in FP8 with bfloat16, and the config of the latter.
bool has_precision_guard(const Config& config);
Config without_fp8(const Config& config);

}  // namespace octavo
