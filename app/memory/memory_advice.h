// The advice for a run that does not fit, before it begins or in a plan of it.
#pragma once

#include <string>

#include "app/config/config.h"
#include "app/memory/plan_memory.h"

namespace octavo {

// Changes that make a config fit.
struct FittingChange {
  std::string overrides;  // of keys, as on the command line; empty: nothing was found
  int64_t ranks = 0;      // of the run, with them
};

// The smallest change by which `config`, valid for a run on `ranks` ranks, fits: a key, else two, else more ranks with
// a batch grown alike. `group` is used for nothing but to plan; no collective.
FittingChange find_fitting_change(const Config& config, int64_t ranks, const PlannedDevice& device,
                                  ProcessGroup& group);

// One sentence: what is needed and what there is, the largest items, and `advice`, words that would make it fit; empty
// where none are known.
std::string unfitting_message(const MemoryPlan& plan, int64_t num_layers, const std::string& advice);

}  // namespace octavo
