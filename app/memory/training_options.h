// What a run trains and keeps, decided by the memory there is; and what is said where nothing fits.
#pragma once

#include <functional>

#include "app/run/training_state.h"

namespace octavo {

// The options of a rank, what the config leaves to the memory (app/memory/memory_choice.h) decided by `fits`, which
// says whether a choice does (on every rank of a run alike); the last choice where none does.
using FitsTraining = std::function<bool(const TrainingOptions&)>;
TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits);

// Those of a run, with what is auto decided by the memory there is (app/memory/memory_room.h). Throws InputError where
// the plan cannot fit. A collective; `config` and `layout` must outlive the options.
TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime);
// The same, whether they fit or not.
TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime);

}  // namespace octavo
