// Plans the memory of a job, item by item, for any number of ranks and without a GPU. The plan lays out the
// TrainingState that a run allocates in a planning arena, with a dry-run stream and dry-run communicators. The plan is
// exact except for two estimates: cuDNN's workspace on a GPU (kernels/attention/sdpa.h), and memory outside of the
// arena (app/resolve/memory_budget.h).
#pragma once

#include "app/job/job.h"
#include "parallel/mesh.h"

namespace octavo {

// Returns the memory that a rank of `mesh` allocates for the job, which may be a draft (app/resolve/resolve.h).
MemoryPlan plan_memory(const Job& job, const Mesh& mesh, const MemoryBudget& budget);
// Returns MemoryPlan::arena_bytes of plan_memory().
int64_t planned_bytes(const Job& job, const Mesh& mesh);

}  // namespace octavo
