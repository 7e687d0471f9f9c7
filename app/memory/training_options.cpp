#include "app/memory/training_options.h"

#include <algorithm>

#include "app/memory/memory_advice.h"
#include "app/memory/memory_choice.h"
#include "core/error.h"

namespace octavo {

namespace {

void check_fits(const TrainingOptions& options, const MemoryBudget& budget, const PlannedDevice& device,
                Runtime& runtime) {
  const Config& config = options.config;
  const MemoryPlan plan = plan_memory(options, runtime.mesh(), budget);
  if (plan.fits()) return;
  const int64_t ranks = runtime.group().size();
  const std::string advice = find_fitting_change(config, ranks, device, runtime.group()).words(ranks);
  throw InputError(unfitting_message(plan, config.model.num_layers, advice));
}

}  // namespace

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits) {
  const std::vector<MemoryChoice> choices = memory_choices(config, mesh.shape());
  const auto options = [&](const MemoryChoice& choice) -> TrainingOptions {
    return {.config = config,
            .layout = layout,
            .local_batch = config.training.global_batch_size / mesh.shape().data(),
            .sharding = {.reshard_after_forward = choice.reshard_after_forward,
                         .accumulate_unsharded = choice.accumulate_unsharded},
            .checkpointing = choice.checkpointing};
  };
  if (choices.size() == 1) return options(choices.front());
  const size_t chosen = first_fitting(choices, [&](const MemoryChoice& choice) { return fits(options(choice)); });
  return options(choices[std::min(chosen, choices.size() - 1)]);
}

TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  ProcessGroup& group = runtime.group();
  const Mesh& mesh = runtime.mesh();
  PlannedDevice device;
  group.agree([&] { device = own_device(runtime); });
  const MemoryBudget budget = memory_budget(config, mesh.shape(), device);
  TrainingOptions options = choose_training_options(config, layout, mesh, [&](const TrainingOptions& some) {
    bool fits = true;
    group.agree([&] { fits = budget.fits(planned_bytes(some, mesh)); });
    return group.all_reduce_max(fits ? 0 : 1) == 0;
  });
  group.agree([&] { check_fits(options, budget, device, runtime); });
  return options;
}

}  // namespace octavo
