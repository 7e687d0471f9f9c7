#include "app/memory/inference.h"

#include "app/memory/memory_room.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

InferenceState::InferenceState(const Config& config, const ParameterLayout& layout, bool validating, Arena& arena,
                               Runtime& runtime)
    : parameters(layout, config.precision, {.reshard_after_forward = true}, LlamaMode::kInference,
                 runtime.data_parallel(), arena, runtime.stream()),
      model({.config = config.model,
             .shape = {.micro_batch_size = config.training.micro_batch_size,
                       .seq_len = config.data.seq_len,
                       .document_mask = validating && config.data.document_mask},
             .precision = config.precision,
             .mode = LlamaMode::kInference,
             .tensor = tensor_group_options(runtime.mesh().tensor(), config.parallel)},
            parameters, arena, runtime.stream()),
      inputs(arena.allocate("inputs", DType::kInt32, {model.shape().tokens()})) {
  if (validating) validator.emplace(config, runtime, arena);
}

InferenceModel::InferenceModel(const Config& config, bool validating, Runtime& runtime)
    : runtime_(runtime), layout_(config.model, runtime.tensor_rank()), memory_(runtime.allocate([&] {
        Arena plan(runtime.stream().device());
        const InferenceState planned(config, layout_, validating, plan, runtime);
        const MemoryRoom room = memory_room(config, runtime);
        CHECK_INPUT(room.fits(plan.used()), "a forward pass over {} tokens takes {:.1f} GiB, but {:.1f} GiB are free",
                    with_thousands_separators(planned.model.shape().tokens()), gib(room.needed(plan.used())),
                    gib(room.available));
        return plan.used();
      })) {
  runtime.group().agree_on_files("opening the data", [&] {
    state_ = std::make_unique<InferenceState>(config, layout_, validating, memory_.arena, runtime);
  });
}

void InferenceModel::load(const Config& config, Checkpoint* checkpoint) {
  runtime_.group().agree_on_files("reading the weights", [&] {
    if (checkpoint != nullptr) {
      load_weights(*checkpoint, state_->parameters, runtime_.stream());
      load_amax_history(*checkpoint, state_->model.amaxes(), runtime_.stream());
    } else {
      load_initial_weights(config, state_->parameters, runtime_.stream(),
                           {runtime_.group().rank(), runtime_.group().size()});
    }
  });
  state_->parameters.set(state_->model.weight_casts(&runtime_.mesh().world()), runtime_.stream());
}

}  // namespace octavo
