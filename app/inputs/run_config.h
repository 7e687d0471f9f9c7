// The config of a command that runs a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "checkpoint/weight_source.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct ConfigArguments {
  std::string path;                    // CONFIG.yaml; to evaluate also a model (app/inputs/model_path.h)
  std::vector<std::string> overrides;  // key=value
};

// Loads, checks and completes a config on every rank alike: the shape comes from model.init_from where none is given.
// A checkpoint is evaluated with its own config, except for the ranks and the device; a model that was imported, and a
// Hugging Face directory, with their shape alone. What is evaluated is the model that is given, or else the one that
// model.init_from names on the command line, or else the newest checkpoint of the config's run. data.bos_id and
// data.eos_id are found where they are auto (app/inputs/document_tokens.h), except for synthetic data. A run that
// resumes a checkpoint takes the shape from it, and does not open model.init_from unless the command line gives it. The
// config is checked for `planned_ranks` ranks, or for those of `group` if that is 0.
Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose,
                       int64_t planned_ranks = 0);

// Takes the shape of the weights that config.init_from names (adopt_model). Returns the note of the weights
// (WeightSource::note). Throws an InputError if the config contradicts them.
std::string adopt_initial_model(Config& config, const WeightSource& source);

}  // namespace octavo
