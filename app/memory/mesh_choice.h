// Chooses the mesh if the config leaves it open (ParallelConfig::chooses_replicas). With several nodes, each node gets
// a replica of the state, sharded over its ranks, if that fits and needs no more recomputation than one replica for all
// ranks. Otherwise all ranks shard one replica. With one replica per node, gathers stay within the nodes, and only
// gradient sums cross the network, once per step.
#pragma once

#include <string>

#include "app/job/job.h"
#include "app/process/runtime.h"
#include "parallel/ranks/machines.h"

namespace octavo {

// Describes the sizes of the axes, such as "replicate 2 x shard 4".
std::string describe(const MeshShape& mesh);

// Returns the mesh of a run of `config`, with all its stages, at a place.
MeshChoice choose_mesh(const Config& config, const Place& place);
// Returns a collective that chooses the mesh of a training run, for the constructor of Runtime. All ranks choose the
// same mesh. `config` and `group` must outlive the result.
Runtime::ChooseMesh mesh_that_fits(const Config& config, ProcessGroup& group);

// Returns whether all machines have the same number of ranks, with consecutive numbers.
bool has_equal_nodes(const Machines& machines);

// Returns the largest number of ranks per sequence that is worth trying, so that each rank has 16,384 tokens or more.
// At most 8, and at least 1.
int64_t max_context_parallel(const Config& config);

}  // namespace octavo
