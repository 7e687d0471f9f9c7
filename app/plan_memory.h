// The memory of a run, item by item, for any number of ranks and without a GPU: the same TrainingState that a run
// allocates, laid out in a planning arena on a planned stream, among planned communicators. Exact, but for cuDNN's
// workspace of a GPU (kernels/sdpa.h) and for what lies outside the arena, which are estimates.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/config.h"
#include "app/training_state.h"
#include "parallel/process_group.h"

namespace octavo {

// How long the contents of an item are needed.
enum class Lifetime : uint8_t { kRun, kStep, kBlock };
const char* lifetime_name(Lifetime lifetime);  // "whole run", "one step", "one block"

// All tensors of one name.
struct MemoryItem {
  std::string name;
  int64_t count = 0;
  int64_t bytes = 0;
  Lifetime lifetime = Lifetime::kRun;
};

struct MemoryPlan {
  ShardingOptions sharding;  // as chosen for the memory there is
  ActivationCheckpointing checkpointing;
  std::vector<MemoryItem> items;     // of the arena, the largest first; the padding between tensors is the last
  std::vector<MemoryItem> overlaid;  // in memory of these, at other times
  int64_t arena_bytes = 0;           // their sum, what the run allocates
  int64_t outside_bytes = 0;         // CUDA context, libraries and NCCL's buffers; 0 on the CPU
  int64_t available_bytes = 0;       // memory of one device; 0: unknown
  int64_t total_bytes() const { return arena_bytes + outside_bytes; }
  bool fits() const { return available_bytes == 0 || total_bytes() <= available_bytes; }
};

struct PlannedDevice {
  Device device = Device::kCuda;
  int multiprocessors = 132;
  int64_t memory_bytes = 0;  // 0: unknown, then everything fits
};

// What a GPU's memory holds besides the arena on a run of `ranks` ranks: the CUDA context with this program's kernels,
// cuBLASLt and cuDNN; from the second rank on, NCCL with its buffers for the axes of the mesh, and what it costs to
// have memory registered (`registered`).
int64_t outside_bytes(const MeshShape& mesh, bool registered);

// What `octavo train` allocates on rank 0 of the mesh, which has as much as any. `config` must be resolved for the
// device (resolve_device) and valid for mesh.ranks() ranks; `group` is this process's alone.
MemoryPlan plan_memory(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group);

}  // namespace octavo
