// Finds the checkpoints that a run saved at former starts. A run that began with the checkpoint of another run
// (checkpoint.resume: PATH) resumes its own. Runs of earlier versions saved theirs in ./checkpoints by default, while
// the default directory now lies in the run's own folder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/config/config.h"

namespace octavo {

// Sets checkpoint.dir to ./checkpoints if two conditions hold: checkpoint.dir is the default and holds no checkpoint,
// and the newest readable checkpoint in ./checkpoints records the logging.dir of this run. Returns a line for the log
// that names both directories, or an empty text if ./checkpoints holds nothing that this run could resume. Throws an
// InputError if a directory cannot be read.
std::string find_former_checkpoints(Config& config);

// Returns the path in checkpoint.resume with which the run began that saved a checkpoint with the metadata `meta`.
// Empty if the run began with step 1. TrainingRun passes the path on from checkpoint to checkpoint.
std::string recorded_beginning(const nlohmann::json& meta);

// Returns whether recorded_beginning() is `path`.
bool began_at(const std::string& path, const nlohmann::json& meta);

// Sets checkpoint.resume to auto if it is a path and the newest readable checkpoint in checkpoint.dir was saved by a
// run with this logging.dir, or with one that no longer exists, that began there. So the command that began a run also
// resumes it. Returns a line for the log that says so, or an empty text. Throws an InputError if checkpoint.dir cannot
// be read.
std::string find_own_checkpoints(Config& config);

}  // namespace octavo
