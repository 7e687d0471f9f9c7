// Checks before the first computation that every rank has its own GPU and that all ranks have equal settings. Both
// checks are collectives of all ranks. They throw InputError on every rank, with a message that names the ranks and the
// values that they have.
#pragma once

#include <string>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Checks that every rank uses a different GPU. `uuid` identifies the GPU; `description` names it in the message. Ranks
// with different values of NCCL_HOSTID count as ranks of different hosts, as in NCCL. This lets several ranks share a
// GPU, slowly, to test what several GPUs do (scripts/gpu_checks.sh).
void check_own_gpu(ProcessGroup& group, const std::string& uuid, const std::string& description);

// Checks that every rank has rank 0's settings, given as lines such as "training.steps 100". The message shows the
// first line that differs.
void check_same_settings(ProcessGroup& group, const std::string& lines);

}  // namespace octavo
