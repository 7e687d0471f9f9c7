// Runs of earlier versions whose config named no checkpoint.dir: their checkpoints are in ./checkpoints, whatever the
// run, instead of in the run's own directory.
#pragma once

#include <string>

#include "app/config/config.h"

namespace octavo {

// Sets checkpoint.dir to ./checkpoints if it is the default and holds no checkpoint, and the newest readable checkpoint
// in ./checkpoints records this run's logging.dir. Returns a line for the log that names both directories; empty where
// ./checkpoints holds nothing that this run could have been meant to resume. InputError where a directory cannot be
// looked at.
std::string find_former_checkpoints(Config& config);

}  // namespace octavo
