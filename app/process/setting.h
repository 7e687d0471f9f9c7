// The setting of a run, which a command observes before anything is decided: the device, the machines and their memory.
#pragma once

#include <string>

#include "app/job/job.h"
#include "app/process/host_memory.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct Setting {
  Config run;       // The config of the whole run, with the defaults of the device.
  Place place;      // The ranks and devices, with the memory that is free on this rank.
  MeshChoice mesh;  // The mesh of the config. One replica until with_chosen_mesh(), if the run chooses their number.
};

// Picks the device: config.device, or with auto a GPU if the program has kernels for it. Completes the config with the
// defaults of the device, and sets the number of CPU threads and the time limit of collectives. A collective. Throws
// the same InputError on every rank if a rank has no GPU of its own or has another config than rank 0.
Setting observe_setting(Config config, ProcessGroup& group);

// Returns CUDA's number of the GPU that this rank uses. Throws an InputError if there is none.
int choose_gpu(const ProcessGroup& group);
// Returns the number of CPU threads of this rank. If the launcher bound the ranks to cores by default, widens the
// binding (app/process/cores.h), and rank 0 logs this. Ranks that are bound to the same cores share them.
// OMP_NUM_THREADS takes precedence. A collective.
int choose_threads(ProcessGroup& group);
// Returns this rank's share of the machine's host memory, also if the device is a GPU.
HostMemory share_of_host_memory(const ProcessGroup& group);
// Returns whether all machines have the same number of ranks, with consecutive numbers.
bool has_equal_nodes(const Machines& machines);

}  // namespace octavo
