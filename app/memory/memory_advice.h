// Advice for runs that do not fit into memory, both before they begin and in a plan.
#pragma once

#include <string>

#include "app/config/config.h"
#include "app/memory/plan_memory.h"

namespace octavo {

// Largest number of layers for which changes are searched. A search makes up to 250 plans, and the time of a plan is
// proportional to the layers.
inline constexpr int64_t kMaxLayersOfAdvice = 512;

// Changes of a config that make it fit.
struct FittingChange {
  std::string overrides;  // Overrides in the form of the command line.
  int64_t ranks = 0;      // Number of ranks of the run with the overrides. 0 if no change was found.
  // Returns the change of a run on `now` ranks in words, such as "4 ranks and training.global_batch_size=8".
  std::string words(int64_t now) const;
};

// Returns the smallest change that makes `config`, valid for `ranks` ranks, fit into memory: one key if possible,
// otherwise two keys, otherwise more ranks, with a proportionally larger batch if they cannot divide the batch. Finds
// no change for models with more than kMaxLayersOfAdvice layers. `group` is used for planning only. Not a collective.
FittingChange find_fitting_change(const Config& config, int64_t ranks, const PlannedDevice& device,
                                  ProcessGroup& group);

// Returns one sentence with the required and the available memory, the largest items, and `advice`, a phrase that says
// what would fit. `advice` may be empty.
std::string unfitting_message(const MemoryPlan& plan, int64_t num_layers, const std::string& advice);

}  // namespace octavo
