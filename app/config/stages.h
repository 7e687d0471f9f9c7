// The stages of a run. One config can change some of its keys from certain steps on; each part of the run between two
// changes is a stage. A run without such changes is a single stage.
//
// The config of a stage is the config of the whole run with the changes of the stage. The stage begins at the step and
// the sample at which the previous stage ends. The config and the samples that rollbacks skip determine where each
// stage begins and how far the earlier stages have read each dataset, so a dataset that several stages use continues
// where the earlier stage stopped.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_keys.h"

namespace octavo {

// Where a stage lies in its run.
struct StageSpan {
  int64_t number = 0;         // Number of the stage, from 1. 0 if the run states no stages.
  int64_t steps_before = 0;   // Number of steps of all earlier stages.
  int64_t run_steps = 0;      // Number of steps of all stages.
  int64_t later_tokens = 0;   // Number of tokens of all later stages.
  bool own_schedule = false;  // Whether the stage has its own learning rate schedule.
};

// The config of a stage. training.steps is the last step of the stage, and data.origin is where its data begins.
struct StageConfig : Config {
  StageConfig() = default;
  // The only stage of a run that states no stages.
  explicit StageConfig(const Config& run) : Config(run), stage{.run_steps = run.training.steps} {}

  StageSpan stage;

  // Returns the steps (first, second] that the learning rate schedule covers.
  std::pair<int64_t, int64_t> schedule_steps() const {
    return stage.own_schedule ? std::pair(stage.steps_before, training.steps) : std::pair(int64_t{0}, stage.run_steps);
  }
  double learning_rate(int64_t step) const {
    const auto [begin, end] = schedule_steps();
    return octavo::learning_rate(optimizer, step - begin, end - begin);
  }
};

// Returns the stage of a step. Stages count from 0 and steps from 1. Steps after the end of the run belong to the last
// stage.
size_t stage_of_step(const Config& run, int64_t step);
StageConfig config_of_step(const Config& run, int64_t step);
// Returns the configs of all stages, in order. `rolled_back` has the samples that the run skips in addition to
// data.skip. Throws an InputError if a config is invalid.
std::vector<StageConfig> stage_configs(const Config& run, const std::vector<SampleRange>& rolled_back = {});
std::vector<StageConfig> stage_configs(const StageConfig& stage, const std::vector<SampleRange>& = {}) = delete;
// Returns data.skip and the samples that rollbacks skip.
std::vector<SampleRange> skipped_samples(const DataConfig& data, const std::vector<SampleRange>& rolled_back);

// Makes the key `stages`, whose items may give all of `keys` that a stage is allowed to change.
ConfigKey stages_key(const std::vector<ConfigKey>& keys);

}  // namespace octavo
