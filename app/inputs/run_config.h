// Loads the config of a command that runs a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "checkpoint/weight_source.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct ConfigArguments {
  // Path of the config. For an evaluation it may also be a model (app/inputs/model_path.h).
  std::string path;
  std::vector<std::string> overrides;  // Overrides in the form key=value.
};

// Loads, checks and completes a config, with the same result on every rank. The config is checked for `planned_ranks`
// ranks, or for the ranks of `group` if that is 0.
//
// If the config gives no shape, the shape comes from model.init_from. A run that resumes a checkpoint takes the shape
// from the checkpoint, and reads model.init_from only if the command line gives it. data.bos_id and data.eos_id are
// resolved if they are auto (app/inputs/document_tokens.h), except for synthetic data.
//
// An evaluation uses the model that is given, or else the model.init_from of the command line, or else the newest
// checkpoint of the config's run. A checkpoint is evaluated with its own config except for parallel settings and the
// device. An imported model or Hugging Face directory provides only its shape.
Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose,
                       int64_t planned_ranks = 0);

// Completes the shape of the model with that of the checkpoint which a run resumes, or else with that of the weights
// that config.init_from names (adopt_initial_model). Returns the note of these weights on rank 0. Does nothing without
// config.init_from. A collective.
std::string complete_model(Config& config, ProcessGroup& group, Purpose purpose);

// Completes the config with the shape of the weights that config.init_from names (adopt_model). Returns the note of the
// weights (WeightSource::note). Throws an InputError if the config contradicts the weights.
std::string adopt_initial_model(Config& config, const WeightSource& source);

}  // namespace octavo
