// Loads the config of a command that runs a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "checkpoint/weight_source.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct ConfigArguments {
  // Path of the config. For an evaluation it may also be a model (app/inputs/model_path.h), and for a plan a Hugging
  // Face directory or config.json.
  std::string path;
  std::vector<std::string> overrides;  // Overrides in the form key=value.
};

// Loads, checks and completes a config, with the same result on every rank. The config is checked for `planned_ranks`
// ranks, or for the ranks of `group` if that is 0.
//
// If the config gives no shape, the shape comes from model.init_from. A run that resumes a checkpoint takes the shape
// from the checkpoint, and reads model.init_from only if the command line gives it. data.bos_id and data.eos_id are
// resolved if they are auto (app/inputs/tokenizer_source.h), except for synthetic data.
//
// An evaluation uses the model that is given, or else the model.init_from of the command line, or else the newest
// checkpoint of the config's run. A checkpoint is evaluated with its own config except for parallel settings and the
// device. An imported model or Hugging Face directory provides only its shape.
Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose,
                       int64_t planned_ranks = 0);

// Completes the shape of the model with that of the checkpoint which a run resumes, or else with that of the weights
// that config.init_from names (adopt_initial_model). Returns the sentences of adopt_initial_model on rank 0. Does
// nothing without config.init_from. A collective.
std::vector<std::string> complete_model(Config& config, ProcessGroup& group, Purpose purpose);

// Completes the config with the shape of the weights that config.init_from names (adopt_model). A model.rope_theta or
// model.rope_scaling in the config replaces that of the weights, so that a run can extend the context of a model.
// Returns sentences that a user should see: the notes of the weights (WeightSource::notes) and what was replaced.
// Throws an InputError if the config contradicts the weights in another field.
std::vector<std::string> adopt_initial_model(Config& config, const WeightSource& source);

// Opens the weights at `path` for a plan, which needs only their shape: a Hugging Face directory may have config.json
// without weights.
std::unique_ptr<WeightSource> open_planned_weights(const std::string& path);

// Loads the config at arguments.path. A Hugging Face directory, or its config.json, stands for a config that consists
// of model.init_from.
Config load_config_or_shape(const ConfigArguments& arguments);

}  // namespace octavo
