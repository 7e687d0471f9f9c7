// Checks among the ranks before anything is computed: that they have what they must have alike, and apart. Both are
// collectives of all ranks and throw InputError on every rank alike, naming the ranks and what they have.
#pragma once

#include <string>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Every rank uses a GPU of its own. `uuid` is the same exactly for the same GPU; `description` is for the message. As
// NCCL does, it takes ranks whose NCCL_HOSTID differ for ranks of different hosts: so several can share a GPU, slowly,
// to check what several GPUs do (scripts/gpu_checks.sh).
void check_own_gpu(ProcessGroup& group, const std::string& uuid, const std::string& description);

// Every rank has rank 0's settings, given as lines like "training.steps 100"; the message has the first that differs.
void check_same_settings(ProcessGroup& group, const std::string& lines);

}  // namespace octavo
