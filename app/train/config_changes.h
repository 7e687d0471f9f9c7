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

// Whether step `step` would have had another learning rate than it had, so that the rate would jump behind it.
bool rate_jumps(const Config& before, const Config& now, int64_t step);

}  // namespace octavo
