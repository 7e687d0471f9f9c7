// The advice for a run that does not fit, before it begins or in a plan of it.
#pragma once

#include <string>

#include "app/config/config.h"
#include "app/memory/plan_memory.h"

namespace octavo {

// Changes that make a config fit.
struct FittingChange {
  std::string overrides;  // Overrides of keys, as on the command line. Empty if nothing was found.
  int64_t ranks = 0;      // Number of ranks of the run with the overrides.
};

// Returns the smallest change by which `config`, valid for a run on `ranks` ranks, fits: one key, otherwise two,
// otherwise more ranks with a proportionally larger batch. `group` is used only to plan. Not a collective.
FittingChange find_fitting_change(const Config& config, int64_t ranks, const PlannedDevice& device,
                                  ProcessGroup& group);

// Returns one sentence with the needed and the available memory, the largest items, and `advice`, a phrase that says
// what would fit. `advice` may be empty.
std::string unfitting_message(const MemoryPlan& plan, int64_t num_layers, const std::string& advice);

}  // namespace octavo
