// Decides whether a run may resume a checkpoint, and where its data continues. These functions need neither the device
// nor other ranks, so that a dry run makes the same decisions as a run.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "app/config/stages.h"
#include "checkpoint/checkpoint.h"
#include "data/loader.h"

namespace octavo {

// Throws an InputError if a run with this config may not resume the checkpoint. If `logs` is true, logs the keys in
// which the run differs from the run that saved the checkpoint.
void check_may_resume(const Config& run, const Checkpoint& checkpoint, bool logs);

// Returns the options of the loader after `steps_done` steps. Those about ranks have the values for a single rank.
LoaderOptions loader_options(const StageConfig& config, int64_t steps_done);

// Returns the number of sequences that remain until the end of the run or stage.
int64_t samples_left(const StageConfig& config, int64_t steps_done);

// Opens the training data at a loader state (Progress::loader_state), or at its beginning if `state` is null. If the
// data differs from the checkpoint's data, the data begins at its first sample if checkpoint.allow_changes permits
// that, which is logged if `logs` is true. Otherwise throws an InputError. If `logs` is true, also warns of files that
// may have changed although their fingerprints are equal (SampleStream::modified_since).
std::unique_ptr<Loader> open_loader(const Config& config, const LoaderOptions& options, const nlohmann::json& state,
                                    bool logs);

}  // namespace octavo
