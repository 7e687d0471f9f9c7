// Job is one stage of a run with everything decided. A job is a value that never changes. resolve()
// (app/resolve/resolve.h) makes it, and plans, dry runs, benchmarks and runs read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/config/stages.h"
#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/layer_spec.h"
#include "model/parameters/sharded_parameters.h"
#include "parallel/config.h"

namespace octavo {

// The ranks of a job and the device of each. A run detects its place, and a plan gets it from its options.
struct Place {
  Device device = Device::kCuda;
  int64_t ranks = 1;
  int64_t ranks_per_node = 8;  // The largest number of ranks on one node.
  bool equal_nodes = true;     // Whether every node has ranks_per_node ranks, with consecutive numbers.
  int threads = 1;             // Number of CPU threads of each rank.
  int multiprocessors = 132;   // Number of multiprocessors of each GPU.
  int64_t memory_bytes = 0;    // Total memory of the device per rank. 0 if unknown; then everything fits.
  // Free memory of the device per rank when a run decides. Empty in a plan.
  std::optional<int64_t> free_bytes = std::nullopt;

  bool one_node() const { return ranks <= ranks_per_node; }
};

// Mesh of a run and the reason for it.
struct MeshChoice {
  MeshShape shape = {};
  std::string reason = {};  // Explains the choice, as a sentence without its subject. Empty if there was no choice.
};

// The memory that a job may use on a rank.
struct MemoryBudget {
  int64_t available = 0;  // Memory that may be allocated, in bytes. 0 if unknown; then everything fits.
  int64_t outside = 0;    // Memory outside of the arena, such as that of libraries.
  int64_t margin = 0;     // Memory that must stay free.
  int64_t needed(int64_t arena_bytes) const { return arena_bytes + outside + margin; }
  bool fits(int64_t arena_bytes) const { return available == 0 || needed(arena_bytes) <= available; }
};

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

// The memory that a job needs on a rank, item by item (app/resolve/plan_memory.h).
struct MemoryPlan {
  // Items of the arena, the largest first. The last item is the padding between tensors.
  std::vector<MemoryItem> items = {};
  std::vector<MemoryItem> overlaid = {};  // Items that share memory with `items` at other times.
  int64_t arena_bytes = 0;  // Size of the arena in bytes, the sum of `items`. This is what the run allocates.
  int64_t state_bytes = 0;  // Part of the arena for the training state, which is all but the validation.
  MemoryBudget budget = {};
  // Size of the arena on a rank of each pipeline stage, of which `arena_bytes` is the largest. Empty with a single
  // stage.
  std::vector<int64_t> stage_bytes = {};
  int64_t total_bytes() const { return arena_bytes + budget.outside; }
  bool fits() const { return budget.fits(arena_bytes); }
};

struct Job {
  // The stage as the config states it, with values from files (such as the model's shape) and for the device. Keys may
  // be auto. config.yaml and checkpoints record the whole run in this form, so that a run on another machine decides
  // again.
  StageConfig stated = {};
  // The stage as it runs. The keys that a run decides by its ranks and memory are not auto (is_decided).
  StageConfig config = {};
  Place place = {};
  MeshChoice mesh = {};
  // Memory of the rank that needs the most, or of this rank in a run. Empty in a draft (app/resolve/resolve.h).
  MemoryPlan memory = {};

  // Returns the number of sequences per step on each rank.
  int64_t local_batch() const { return config.training.global_batch_size / mesh.shape.data(); }
  // Returns the number of micro-batches per step on each rank.
  int64_t micro_batches() const { return local_batch() / config.training.micro_batch_size; }
  // Returns the spec of each layer of the model.
  std::vector<LayerSpec> layers() const;
  // Returns how the parameters are sharded. The caller sets ShardingOptions::tokens.
  ShardingOptions sharding() const;
};

// Returns whether the config decides the mesh, activation_checkpointing.mode, parallel.reshard_after_forward and
// parallel.accumulate_unsharded. True for Job::config.
bool is_decided(const Config& config);

// Returns whether precision.guard compares FP8 with bfloat16.
bool has_precision_guard(const Config& config);
// Returns the job on another mesh.
Job with_mesh(Job job, const MeshChoice& mesh);
// Returns whether the job computes in bfloat16 although its config states FP8, as precision.guard requires for a while.
bool in_fallback(const Job& job);
// Returns the job with all matmuls in bfloat16 if it has FP8, and with the FP8 of its config if it is in a fallback.
// The memory plan stays, because it covers both (plan_memory).
Job in_other_precision(Job job);

}  // namespace octavo
