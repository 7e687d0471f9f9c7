// Whether a checkpoint has all that a run needs to resume.
#pragma once

#include "checkpoint/checkpoint.h"

namespace octavo {

// DamagedCheckpoint that names the manifest unless it lists all weights of its model, each in its shape, and is either
// of an imported model or also has what a run saves: the states of its optimizer, its config and its loader state. What
// the manifest belongs to (another model, other data) is not looked at. Reads no shard.
void check_resumable(const Checkpoint& checkpoint);

}  // namespace octavo
