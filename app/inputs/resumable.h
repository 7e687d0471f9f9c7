// Checks that a checkpoint has everything that a run needs to resume.
#pragma once

#include "checkpoint/checkpoint.h"

namespace octavo {

// Checks the manifest of a checkpoint. It must list all weights of its model with their shapes. Unless the checkpoint
// is an imported model, it must also list what a run saves: the optimizer states, the config and the loader state.
// Throws a DamagedCheckpoint that names the manifest. Does not check whether model and data are those of the current
// run, and reads no shard.
void check_resumable(const Checkpoint& checkpoint);

}  // namespace octavo
