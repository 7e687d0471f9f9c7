// Advice for runs that do not fit into memory, both before they begin and in a plan.
#pragma once

#include <string>

#include "app/job/job.h"

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

// Returns the smallest change that makes the stated config of a job fit into memory at its place: one key if possible,
// otherwise two keys, otherwise more ranks, with a proportionally larger batch if these ranks cannot divide the batch.
// Finds no change for models with more than kMaxLayersOfAdvice layers.
FittingChange find_fitting_change(const Job& job);

// Returns one sentence with the required and the available memory of a job, the largest items, and `advice`, a phrase
// that says what would fit. `advice` may be empty.
std::string unfitting_message(const Job& job, const std::string& advice);

// Throws an InputError with unfitting_message() and find_fitting_change() if the job does not fit.
void check_fits(const Job& job);

}  // namespace octavo
