// Implements `octavo train --dry-run`.
#pragma once

#include "app/commands/plan_target.h"

namespace octavo {

// Checks everything that a run of the config needs, and prints its start screen and the checkpoint that it would
// resume. Writes nothing, and needs neither GPUs nor several ranks. Returns the exit code.
int dry_run(const TargetArguments& arguments, ProcessGroup& group);

}  // namespace octavo
