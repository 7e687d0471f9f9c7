#include "app/memory/training_model.h"

#include "app/memory/plan_memory.h"

namespace octavo {

TrainingModel::TrainingModel(const Config& config, bool validating, Runtime& runtime)
    : layout_(config.model, runtime.tensor_rank()),
      options_(training_options(config, layout_, runtime)),
      memory_(runtime.allocate([&] {
        const TrainingRank rank = training_rank(runtime);
        return validating ? planned_bytes(options_, rank) : plan_training(options_, rank).used();
      })),
      state_(options_, training_rank(runtime), memory_.arena) {}

}  // namespace octavo
