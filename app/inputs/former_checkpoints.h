// Finds the checkpoints of runs of earlier versions. Their default directory was ./checkpoints for every run, while it
// now lies in the run's own folder.
#pragma once

#include <string>

#include "app/config/config.h"

namespace octavo {

// Sets checkpoint.dir to ./checkpoints if two conditions hold: checkpoint.dir is the default and holds no checkpoint,
// and the newest readable checkpoint in ./checkpoints records the logging.dir of this run. Returns a line for the log
// that names both directories, or an empty text if ./checkpoints holds nothing that this run could resume. Throws an
// InputError if a directory cannot be read.
std::string find_former_checkpoints(Config& config);

}  // namespace octavo
