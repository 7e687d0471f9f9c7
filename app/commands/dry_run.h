// Implements `octavo train --dry-run`.
#pragma once

#include "app/commands/plan_target.h"

namespace octavo {

// Checks what a run of the config needs, prints its start screen and what it would resume, and writes nothing. Needs
// neither GPUs nor ranks. Returns the exit code.
int dry_run(const TargetArguments& arguments, ProcessGroup& group);

}  // namespace octavo
