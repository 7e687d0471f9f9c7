// The options of a rank, decided by its memory budget, and the error if nothing fits.
#pragma once

#include <functional>

#include "app/run/training_state.h"

namespace octavo {

// Returns the options of a rank. If the config leaves a choice to the memory (app/memory/memory_choice.h), it is the
// first choice that `fits`, or the last one if none does. `fits` must give the same answer on every rank of a run.
using FitsTraining = std::function<bool(const TrainingOptions&)>;
TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits);

// Returns the options of a run by the available memory (app/memory/memory_room.h). Throws an InputError if the plan
// cannot fit. A collective. `config` and `layout` must outlive the options.
TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime);

}  // namespace octavo
