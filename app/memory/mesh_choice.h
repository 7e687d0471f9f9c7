// Chooses the mesh if the config leaves it open (ParallelConfig::chooses_replicas). With several nodes, each node gets
// a replica of the state, sharded over its ranks, if that fits and needs no more recomputation than one replica for all
// ranks. Otherwise all ranks shard one replica. With one replica per node, gathers stay within the nodes, and only
// gradient sums cross the network, once per step.
#pragma once

#include "app/config/config.h"
#include "app/memory/memory_budget.h"
#include "app/process/runtime.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Describes the sizes of the axes, such as "replicate 2 x shard 4".
std::string describe(const MeshShape& mesh);

// Returns the mesh of a run of `config`, with all its stages, on `ranks` ranks. `ranks_per_node` is the number of ranks
// on each node, which must be consecutive. It is 0 if the numbers differ or ranks are not consecutive. `group` is used
// for planning only.
MeshChoice choose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node, const PlannedDevice& device,
                       ProcessGroup& group);
// Returns a collective that chooses the mesh of a training run, for the constructor of Runtime. All ranks choose the
// same mesh. `config` and `group` must outlive the result.
Runtime::ChooseMesh mesh_that_fits(const Config& config, ProcessGroup& group);

// Returns the number of ranks per machine if it is the same on all machines and their ranks are consecutive. Otherwise
// returns 0.
int64_t ranks_per_node(const Machines& machines);

// Returns the largest number of ranks per sequence that is worth trying, so that each rank has 16,384 tokens or more.
// At most 8, and at least 1.
int64_t max_context_parallel(const Config& config);

}  // namespace octavo
