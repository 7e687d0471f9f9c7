// Job is one stage of a run with everything decided. A job is a value that never changes. resolve()
// (app/resolve/resolve.h) makes it, and plans, dry runs, benchmarks and runs read it.
#pragma once

#include <string>
#include <vector>

#include "app/config/stages.h"
#include "app/job/memory_plan.h"
#include "app/job/place.h"
#include "model/architecture/layer_spec.h"
#include "model/parameters/sharded_parameters.h"
#include "parallel/config.h"

namespace octavo {

// Mesh of a run and the reason for it.
struct MeshChoice {
  MeshShape shape = {};
  std::string reason = {};  // Explains the choice, as a sentence without its subject. Empty if there was no choice.
};

struct Job {
  // The stage as the config states it, completed by files and the device. Keys may be auto. config.yaml and checkpoints
  // record the whole run in this form, so that a run on another machine decides again.
  StageConfig stated = {};
  // The stage as it runs. No key is auto that a run decides by its ranks and memory (is_decided).
  StageConfig config = {};
  Place place = {};
  MeshChoice mesh = {};
  // Memory of the rank that needs the most, or of this rank in a run. Empty in a draft.
  MemoryPlan memory = {};

  // Returns the number of sequences per step on each rank.
  int64_t local_batch() const { return config.training.global_batch_size / mesh.shape.data(); }
  // Returns the number of micro-batches per step on each rank.
  int64_t micro_batches() const { return local_batch() / config.training.micro_batch_size; }
  // Returns the spec of each layer of the model.
  std::vector<LayerSpec> layers() const;
  // Returns how the parameters are sharded, without the number of tokens.
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
