// How a run takes up a checkpoint: whether it may, and where its data continues. Nothing here needs the device or the
// other ranks, so that a dry run decides as a run does.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "app/config/config.h"
#include "checkpoint/checkpoint.h"
#include "data/loader.h"

namespace octavo {

// Returns the stage, from 0, of the first step of a run that resumes the checkpoint, if there is one.
size_t stage_to_train(const Config& config, const std::optional<Checkpoint>& resumed);

// Throws InputError where a run with this config, that of a stage or of a whole run, may not resume the checkpoint.
// Logs what the run does otherwise than the one that saved it, if `logs`.
void check_may_resume(const Config& config, const Checkpoint& checkpoint, bool logs);

// Returns the options of the loader after `steps_done` steps, for a single rank.
LoaderOptions loader_options(const Config& config, int64_t steps_done);

// Returns the number of sequences that are left up to the end of the run or stage.
int64_t samples_left(const Config& config, int64_t steps_done);

// Opens the training data at the loader state of a checkpoint, or at its beginning without one. Data that is not the
// checkpoint's begins from its first sample where checkpoint.allow_changes allows it, which is logged if `logs`, and
// is an InputError otherwise.
std::unique_ptr<Loader> open_loader(const Config& config, const LoaderOptions& options, const nlohmann::json* state,
                                    bool logs);

}  // namespace octavo
