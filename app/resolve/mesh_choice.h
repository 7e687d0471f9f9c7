// Chooses the mesh if the config leaves it open (ParallelConfig::chooses_replicas). With several nodes, each node gets
// a replica of the state, sharded over its ranks, if these replicas fit and need no more recomputation than one replica
// for all ranks. Otherwise all ranks shard one replica. With one replica per node, gathers stay within the nodes, and
// only gradient sums cross the network, once per step.
#pragma once

#include <string>

#include "app/process/setting.h"

namespace octavo {

// Describes the sizes of the axes, such as "replicate 2 x shard 4".
std::string describe(const MeshShape& mesh);

// Returns the mesh of a run of `config`, with all its stages, at a place.
MeshChoice choose_mesh(const Config& config, const Place& place);
// Returns the setting with the mesh that choose_mesh() chooses for a training run. All ranks choose the same mesh. A
// collective.
Setting with_chosen_mesh(Setting setting, ProcessGroup& group);

// Returns the largest number of ranks per sequence that is worth trying, so that each rank has 16,384 tokens or more.
// At most 8, and at least 1.
int64_t max_context_parallel(const Config& config);

}  // namespace octavo
