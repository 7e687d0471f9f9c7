// Plans the memory of a run, item by item, for any number of ranks and without a GPU. The plan lays out the
// TrainingState that a run allocates in a planning arena, with a dry-run stream and dry-run communicators. It is exact,
// with two exceptions that are estimates: cuDNN's workspace on a GPU (kernels/attention/sdpa.h), and memory outside of
// the arena (app/memory/memory_budget.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/memory/memory_budget.h"
#include "app/run/training_state.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

const char* lifetime_name(Lifetime lifetime);  // Returns "whole run", "one step" or "one block".

// All tensors of one name.
struct MemoryItem {
  std::string name;
  int64_t count = 0;
  int64_t bytes = 0;
  Lifetime lifetime = Lifetime::kRun;
  Contents contents = Contents::kOther;
  std::vector<int64_t> blocks = {};  // Block or slot of each tensor (Arena::Item).
};

struct MemoryPlan {
  ShardingOptions sharding;  // Options that were chosen by the available memory.
  ActivationCheckpointing checkpointing;
  // Items of the arena, the largest first. The last item is the padding between tensors.
  std::vector<MemoryItem> items;
  std::vector<MemoryItem> overlaid;  // Items that share memory with `items` at other times.
  int64_t arena_bytes = 0;           // Size of the arena in bytes, the sum of `items`. This is what the run allocates.
  MemoryBudget budget;
  // Size of the arena on a rank of each pipeline stage, of which `arena_bytes` is the largest. Empty with a single
  // stage.
  std::vector<int64_t> stage_bytes = {};
  int64_t total_bytes() const { return arena_bytes + budget.outside; }
  bool fits() const { return budget.fits(arena_bytes); }
};

// Returns the options of a rank. If the config leaves a choice open (app/memory/memory_choice.h), takes the first
// choice for which `fits` is true, or the last one if none fits. `fits` must give the same answer on every rank of a
// run.
using FitsTraining = std::function<bool(const TrainingOptions&)>;
TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits);

// Returns what `octavo train` allocates on the first rank of the pipeline stage that needs the most. No rank needs
// more. `config` must be resolved for the device (resolve_device) and valid for mesh.ranks() ranks. `group` must
// contain only this process.
MemoryPlan plan_memory(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group);
// Returns whether the choice of memory_choices() that takes the least memory, the last one, fits. Plans once, where
// plan_memory() plans up to a dozen times.
bool can_fit(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group);
// Plans the memory of a rank whose options are already chosen.
MemoryPlan plan_memory(const TrainingOptions& options, const Mesh& mesh, const MemoryBudget& budget);
// Returns the size of the rank's arena in bytes.
int64_t planned_bytes(const TrainingOptions& options, const Mesh& mesh);
// Returns the size of the training state without validation in bytes. If precision.guard compares FP8 with bfloat16,
// this is the larger of the two states.
int64_t state_bytes(const TrainingOptions& options, const Mesh& mesh);

// Returns whether precision.guard compares FP8 with bfloat16.
bool has_precision_guard(const Config& config);
// Returns the config with linears in bfloat16.
Config without_fp8(const Config& config);

}  // namespace octavo
