// The stages of a run: one config that changes some keys from certain steps on.
//
// A stage is a run of its own: its config is the whole config with what the stage changes, and begins at the step and
// the sample at which the stage before ends. All of that follows from the config alone: where a stage begins, and how
// far each dataset was read by then, so that a dataset of several stages repeats nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_keys.h"

namespace octavo {

// Returns the number of stages, at least 1. A run without stages is one stage.
size_t num_stages(const Config& config);
// Returns the stage of a step, which counts from 1. Steps after the run belong to the last stage. `config`: that of the
// whole run or of a stage.
size_t stage_of_step(const Config& config, int64_t step);

// Returns the config of a stage, from 0, or the config itself if it has no stages. Throws an InputError if it is
// invalid.
Config stage_config(const Config& config, size_t stage);
Config config_of_step(const Config& config, int64_t step);
// Returns the configs of all stages, in order.
std::vector<Config> stage_configs(const Config& config);
// Returns the config from which stage_config() made this one.
Config whole_config(const Config& of_stage);

// Returns the key `stages`, whose items may give any of the keys that a stage may change. These are among `keys`.
ConfigKey stages_key(const std::vector<ConfigKey>& keys);

}  // namespace octavo
