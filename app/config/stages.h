// The stages of a run. One config can change some of its keys from certain steps on; each part of the run between two
// changes is a stage.
//
// The config of a stage is the config of the whole run with the changes of the stage. It begins at the step and the
// sample at which the previous stage ends. The config and the samples that rollbacks skip determine where each stage
// begins and how far the earlier stages have read each dataset, so a dataset that several stages use continues where
// the earlier stage stopped.
#pragma once

#include <cstdint>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_keys.h"

namespace octavo {

// Returns the number of stages. A run without stages has one.
size_t num_stages(const Config& config);
// Returns the stage of a step. Stages count from 0 and steps from 1. Steps after the end of the run belong to the last
// stage. `config` is the config of the whole run or of one of its stages.
size_t stage_of_step(const Config& config, int64_t step);

// Returns the config of a stage, counted from 0. Returns `config` itself if it has no stages. Throws an InputError if
// the result is invalid.
Config stage_config(const Config& config, size_t stage);
Config config_of_step(const Config& config, int64_t step);
// Returns the configs of all stages, in order. `rolled_back` has the samples that the run skips in addition to
// data.skip.
std::vector<Config> stage_configs(const Config& config, const std::vector<SampleRange>& rolled_back = {});
// Returns the config of the whole run, given the config of one of its stages.
Config whole_config(const Config& of_stage);

// Makes the key `stages`. Its items may give any of `keys` that a stage may change.
ConfigKey stages_key(const std::vector<ConfigKey>& keys);

}  // namespace octavo
