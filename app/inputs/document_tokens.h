// The tokens around the documents of a run, where the config leaves them to the token files (data.bos_id: auto).
#pragma once

#include <string>

#include "app/config/config_check.h"

namespace octavo {

// Sets data.bos_id and data.eos_id where they are auto: to what the checkpoint that a run of this config resumes was
// trained with; without one, to what the sidecars of the token files name. Token files are those of data.train, of all
// stages, and of data.validation; to evaluate, those of data.validation alone. Synthetic data needs none, so nothing is
// read and nothing set. Returns a sentence where a checkpoint and the sidecars differ, else an empty text.
// Throws as find_document_tokens() (data/sidecar.h).
std::string resolve_document_tokens(Config& config, Purpose purpose);

// Sets data.bos_id and data.eos_id, where they are auto, to the ids at these keys of `recorded`, a loader state or the
// data of a config.
void take_document_tokens(const nlohmann::json& recorded, DataConfig& data);

}  // namespace octavo
