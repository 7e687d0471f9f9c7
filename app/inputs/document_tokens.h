// Resolves the tokens around documents if the config leaves them to the token files (data.bos_id: auto).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

// Returns the token files of data.train in all stages and of data.validation, or of data.validation only for an
// evaluation.
std::vector<std::string> token_files_of(const Config& config, Purpose purpose);

// Resolves data.bos_id and data.eos_id if they are auto. A run that resumes a checkpoint, `resumed`, uses the ids that
// the checkpoint was trained with; any other command uses the ids in the sidecars of the token files. For synthetic
// data nothing is read or set. Returns a sentence if a checkpoint and the sidecars differ, or if there are no ids, else
// an empty text. Throws like find_document_tokens() (data/sidecar.h).
std::string resolve_document_tokens(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed);

// Sets data.bos_id and data.eos_id, if they are auto, to the ids in `recorded`, which is a loader state or the data
// section of a config.
void take_document_tokens(const nlohmann::json& recorded, DataConfig& data);

}  // namespace octavo
