// The config of a command that runs a model.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct ConfigArguments {
  std::string path;                    // CONFIG.yaml; to evaluate also a checkpoint, or a directory of them
  std::vector<std::string> overrides;  // key=value
};

// Loads, checks and completes a config on every rank alike: the shape comes from model.init_from where none is given.
// Of a checkpoint its own config is taken, but for the ranks and the device, which are those of now. data.bos_id and
// data.eos_id are found where they are auto (app/run/document_tokens.h), but for synthetic data.
Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose);

}  // namespace octavo
