#include "app/memory/training_options.h"

#include <algorithm>

#include "app/memory/memory_advice.h"
#include "app/memory/memory_choice.h"
#include "core/error.h"

namespace octavo {

namespace {

TrainingOptions options_of(const Config& config, const ParameterLayout& layout, int64_t local_batch,
                           const MemoryChoice& choice) {
  return {.config = config,
          .layout = layout,
          .local_batch = local_batch,
          .sharding = {.reshard_after_forward = choice.reshard_after_forward,
                       .accumulate_unsharded = config.parallel.accumulate_unsharded},
          .checkpointing = choice.checkpointing};
}

// A collective.
PlannedDevice agreed_device(Runtime& runtime) {
  PlannedDevice device;
  runtime.group().agree([&] { device = own_device(runtime); });
  return device;
}

TrainingOptions choose_for(const PlannedDevice& device, const Config& config, const ParameterLayout& layout,
                           Runtime& runtime) {
  const Mesh& mesh = runtime.mesh();
  const MemoryRoom room = memory_room(config, mesh.shape(), device);
  return choose_training_options(config, layout, mesh, [&](const TrainingOptions& options) {
    bool fits = true;
    runtime.group().agree([&] { fits = room.fits(planned_bytes(options, mesh)); });
    return runtime.group().all_reduce_max(fits ? 0 : 1) == 0;
  });
}

void check_fits(const PlannedDevice& device, const TrainingOptions& options, Runtime& runtime) {
  const Config& config = options.config;
  const MemoryPlan plan = plan_memory(options, runtime.mesh(), memory_room(config, runtime.mesh().shape(), device));
  if (plan.fits()) return;
  const int64_t ranks = runtime.group().size();
  const FittingChange change = find_fitting_change(config, ranks, device, runtime.group());
  const std::string advice =
      change.ranks > ranks ? fmt::format("{} ranks and {}", change.ranks, change.overrides) : change.overrides;
  throw InputError(unfitting_message(plan, config.model.num_layers, advice));
}

}  // namespace

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits) {
  const std::vector<MemoryChoice> choices = memory_choices(config, mesh.shape().shards() > 1);
  const int64_t local_batch = config.training.global_batch_size / mesh.shape().data();
  const auto options = [&](const MemoryChoice& choice) { return options_of(config, layout, local_batch, choice); };
  if (choices.size() == 1) return options(choices.front());
  const size_t chosen = first_fitting(choices, [&](const MemoryChoice& choice) { return fits(options(choice)); });
  return options(choices[std::min(chosen, choices.size() - 1)]);
}

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  return choose_for(agreed_device(runtime), config, layout, runtime);
}

TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  const PlannedDevice device = agreed_device(runtime);
  TrainingOptions options = choose_for(device, config, layout, runtime);
  runtime.group().agree([&] { check_fits(device, options, runtime); });
  return options;
}

}  // namespace octavo
