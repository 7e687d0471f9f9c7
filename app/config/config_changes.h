// Compares the config of a resumed run with the config that its checkpoint was saved with, and decides whether the run
// may resume. The table of keys says which keys change the results and how they are compared
// (app/config/config_keys.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"

namespace octavo {

struct ConfigChange {
  std::string key;
  KeyClass key_class = KeyClass::kCarriesOut;
  std::string before;
  std::string now;
};

// Returns the keys whose values differ, in the order of the table. Omits checkpoint.resume, checkpoint.allow_changes
// and the keys that only `octavo plan` reads.
std::vector<ConfigChange> config_changes(const Config& before, const Config& now);
// Formats changes as "training.steps 400 -> 4000, optimizer.lr 0.003 -> 0.001".
std::string describe(const std::vector<ConfigChange>& changes);

// Returns the differing keys that change the results of a run that starts from step 1. Keys that only affect how the
// run is executed are omitted.
std::vector<ConfigChange> changes_of_run(const Config& before, const Config& now);

// Explains why a run with the config `now` may not resume a checkpoint with `steps_done` steps that a run with the
// config `before` saved. The text lists each key that changes the results and whose class is not in
// now.checkpoint.allow_changes, with its old and new value and the remedy. It is empty if the run may resume. Stages
// are taken into account: keys are compared by their values at the next step, and schedules by the learning rates and
// batch sizes of the remaining steps that both runs have, or of the last step if none remain. data.train is not
// compared here, because SampleStream::restore compares the token files themselves.
std::string refusal_to_resume(const Config& before, const Config& now, int64_t steps_done);

// Learning rate and batch size of a run at one step. Steps count from 1.
struct StepSchedule {
  double lr = 0;
  int64_t batch_size = 0;
};
StepSchedule schedule_of(const Config& config, int64_t step);

}  // namespace octavo
