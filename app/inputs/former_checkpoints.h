// Finds the checkpoints that a run saved at former starts. A run that began with the checkpoint of another run
// (checkpoint.resume: PATH) resumes its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

// Returns the checkpoint that the run resumes, or nothing if there is none that can be read. An automatic resume takes
// the newest readable one. An error of a checkpoint is reported when the run opens it.
std::optional<Checkpoint> checkpoint_to_resume(const CheckpointConfig& config);

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
