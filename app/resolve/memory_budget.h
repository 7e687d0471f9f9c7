// The memory budget of a run on a device. Keys with the value auto, and the check whether a run fits, use this one rule
// both in runs and in plans:
//
//   arena + outside + margin <= available
//
//              when a run decides                              in a plan
//   available  free memory; the CUDA context and the           all memory of the device
//              communicators are already allocated
//   outside    what libraries will still allocate              everything that libraries allocate
//   margin     1.5 GiB of a GPU, or 5% of the CPU's memory     the same
//
// A run that has its GPUs to itself decides exactly like a plan for the same number of GPUs.
#pragma once

#include "app/job/job.h"

namespace octavo {

// Returns the place of a run as a plan states it: without free_bytes, and with memory_bytes reduced to what other
// processes leave free.
// Requires: no communicators exist yet.
Place as_planned(Place place);

// Returns the memory budget of a rank of the mesh.
MemoryBudget memory_budget(const ParallelConfig& parallel, const MeshShape& mesh, const Place& place);

}  // namespace octavo
