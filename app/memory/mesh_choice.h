// Chooses the mesh if the config leaves it open (ParallelConfig::leaves_copies). On several nodes each node gets a
// replica of the state, sharded over its ranks, if that fits and needs no more recomputation than if all ranks shard
// one replica; otherwise all ranks shard one. With a replica per node gathers stay within nodes, and only sums of
// gradients go between them, once per step.
#pragma once

#include "app/config/config.h"
#include "app/memory/memory_room.h"
#include "app/process/runtime.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Returns the sizes of the axes: "replicate 2 x shard 4".
std::string describe(const MeshShape& mesh);

// Returns the mesh of a run of `config`, all its stages, on `ranks` ranks. `ranks_per_node` of them are on each node,
// in their order; it is 0 if nodes have different numbers of ranks, or in another order. `group` is used for planning
// alone.
MeshChoice choose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node, const PlannedDevice& device,
                       ProcessGroup& group);
// Returns what a Runtime of a run that trains is given: a collective by which all ranks choose alike. `config` and
// `group` must outlive it.
Runtime::ChooseMesh mesh_that_fits(const Config& config, ProcessGroup& group);

// Returns the number of ranks of each machine if all have as many, in their order; otherwise 0.
int64_t ranks_per_node(const Machines& machines);

}  // namespace octavo
