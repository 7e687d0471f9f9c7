// Resolves the tokens around documents if the config leaves them to the token files (data.bos_id: auto).
#pragma once

#include <string>

#include "app/config/config_check.h"

namespace octavo {

// Resolves data.bos_id and data.eos_id if they are auto. A run that resumes a checkpoint uses the ids that the
// checkpoint was trained with; any other command uses the ids in the sidecars of the token files. These are the files
// of data.train in all stages and of data.validation, or of data.validation only for an evaluation. For synthetic data
// nothing is read or set. Returns a sentence if a checkpoint and the sidecars differ, else an empty text. Throws like
// find_document_tokens() (data/sidecar.h).
std::string resolve_document_tokens(Config& config, Purpose purpose);

// Sets data.bos_id and data.eos_id, if they are auto, to the ids in `recorded`, which is a loader state or the data
// section of a config.
void take_document_tokens(const nlohmann::json& recorded, DataConfig& data);

}  // namespace octavo
