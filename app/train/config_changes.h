// What a run that goes on from a checkpoint does otherwise than the run that saved it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"

namespace octavo {

struct ConfigChange {
  std::string key;
  std::string before;
  std::string now;
};

// The keys whose values differ, in the order of the table, but for where to resume from and what is allowed to differ.
std::vector<ConfigChange> config_changes(const Config& before, const Config& now);
// "training.steps 400 -> 4000, optimizer.lr 0.003 -> 0.001"
std::string describe(const std::vector<ConfigChange>& changes);

// The same of the keys that a step's learning rate and batch size follow from.
std::vector<ConfigChange> schedule_changes(const Config& before, const Config& now);

// What the config of a run makes of a step, from 1.
struct StepSchedule {
  double lr = 0;
  int64_t batch_size = 0;
};
StepSchedule schedule_of(const Config& config, int64_t step);
// But for rounding.
bool same(const StepSchedule& a, const StepSchedule& b);
// "the learning rate 0.003 and 128 sequences"
std::string describe(const StepSchedule& step);

}  // namespace octavo
