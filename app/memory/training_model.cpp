#include "app/memory/training_model.h"

#include "app/memory/memory_advice.h"
#include "core/error.h"
#include "model/parameters/pipeline_stages.h"

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

TrainingModel::TrainingModel(const Config& config, bool validating, Runtime& runtime)
    : layout_(layout_of_rank(config.model, config.parallel, runtime.mesh())),
      options_(training_options(config, layout_, runtime)),
      bfloat16_config_(without_fp8(config)),
      memory_(runtime.allocate([&] {
        return validating ? planned_bytes(options_, runtime.mesh()) : state_bytes(options_, runtime.mesh());
      })) {
  const int64_t bytes = state_bytes(options_, runtime.mesh());
  state_memory_ = memory_.arena.allocate("training state", DType::kUInt8, {bytes});
  lay_out(options_, runtime);
}

void TrainingModel::use_bfloat16(bool in_bfloat16, Runtime& runtime) {
  CHECK(has_precision_guard(options_.config), "there is no memory for a state in bfloat16");
  in_bfloat16_ = in_bfloat16;
  // Communicators name the tensors of transfers in progress by texts of the state.
  for (const TrainingStream& used : training_streams(*state_)) used.stream->synchronize();
  state_.reset();
  runtime.stream().zero(state_memory_);
  runtime.stream().synchronize();  // Other streams will use this memory.
  lay_out(in_bfloat16 ? options_.with(bfloat16_config_) : options_, runtime);
}

void TrainingModel::lay_out(const TrainingOptions& options, Runtime& runtime) {
  Arena arena(runtime.stream().device(), Buffer::adopt(state_memory_.raw(), state_memory_.bytes(), [](void*) {}));
  state_.emplace(options, runtime.mesh(), arena);
}

}  // namespace octavo
