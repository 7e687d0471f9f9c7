// Chooses the options of a rank by its memory budget, and reports if no choice fits.
#pragma once

#include <functional>

#include "app/run/training_state.h"

namespace octavo {

// Returns the options of a rank. If the config leaves a choice open (app/memory/memory_choice.h), takes the first
// choice for which `fits` is true, or the last one if none fits. `fits` must give the same answer on every rank of a
// run.
using FitsTraining = std::function<bool(const TrainingOptions&)>;
TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits);

// Returns the options of a run, chosen by the available memory (app/memory/memory_budget.h). Throws an InputError if no
// choice fits. A collective. `config` and `layout` must outlive the options.
TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime);

}  // namespace octavo
