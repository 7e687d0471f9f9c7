// Finds what a resumed run does otherwise than the run that saved its checkpoint, and whether it may. Which keys
// compute, and how a change of theirs is seen, stands in the table of keys (app/config/config_keys.h).
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

// Returns the keys whose values differ, in the order of the table. Leaves out keys that say where to resume and what
// may change, and keys that only octavo plan reads.
std::vector<ConfigChange> config_changes(const Config& before, const Config& now);
// Returns "training.steps 400 -> 4000, optimizer.lr 0.003 -> 0.001".
std::string describe(const std::vector<ConfigChange>& changes);

// Returns the changes that make a run from its first step another run than one with the config `before`: those of all
// keys that compute.
std::vector<ConfigChange> changes_of_run(const Config& before, const Config& now);

// Why a run with the config `now` may not resume a checkpoint of `steps_done` steps that a run with the config `before`
// saved: every change of what it computes that now.checkpoint.allow_changes does not name, with old and new value and
// the remedy. Empty if it may. Keys are compared as they hold for the next step, and the schedules by the learning
// rates and batch sizes of the steps that both runs would take, or of the last step if none is left. The data of
// data.train is not compared, as its files tell (SampleStream::restore).
std::string refusal_to_resume(const Config& before, const Config& now, int64_t steps_done);

// The schedules of a run at one step, from 1.
struct StepSchedule {
  double lr = 0;
  int64_t batch_size = 0;
};
StepSchedule schedule_of(const Config& config, int64_t step);

}  // namespace octavo
