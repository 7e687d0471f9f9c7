#include "app/memory/inference.h"

#include <utility>

#include "app/inputs/same_files.h"
#include "app/memory/memory_budget.h"
#include "core/error.h"
#include "core/format.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

LlamaOptions options_of(const Config& config, const BatchShape& shape, KvCache* cache, Runtime& runtime) {
  return {.config = config.model,
          .shape = shape,
          .precision = config.precision,
          .mode = LlamaMode::kInference,
          .mesh = &runtime.mesh(),
          .cache = cache};
}

// Returns the shape of the prompt, or of a micro-batch of validation.
BatchShape batch_shape(const Config& config, const std::optional<GenerationShape>& shape, const Mesh& mesh) {
  if (shape) return {.micro_batch_size = 1, .seq_len = shape->prompt_length};
  return batch_shape(config, mesh);
}

std::string describe(const BatchShape& batch, const std::optional<GenerationShape>& shape) {
  if (!shape) return fmt::format("a forward pass of {} tokens", with_thousands_separators(batch.tokens()));
  return fmt::format("generating {} of {} tokens, with keys and values of all of them,",
                     shape->sequences == 1 ? "a sequence" : fmt::format("{} sequences", shape->sequences),
                     with_thousands_separators(shape->capacity));
}

}  // namespace

GenerationState::GenerationState(const Config& config, const GenerationShape& shape, Arena& arena)
    : cache(config.model, shape.sequences, shape.capacity, config.precision.compute, arena),
      prompt(arena.allocate("prompt", DType::kInt32, {shape.prompt_length})),
      tokens(arena.allocate("tokens of a step", DType::kInt32, {shape.sequences})) {}

InferenceState::InferenceState(const Config& config, const ParameterLayout& layout,
                               const std::optional<GenerationShape>& shape, Arena& arena, Runtime& runtime)
    : parameters(layout, config.precision, {.reshard_after_forward = true}, LlamaMode::kInference, &runtime.mesh(),
                 arena, runtime.stream()),
      generation(shape ? std::optional<GenerationState>(std::in_place, config, *shape, arena) : std::nullopt),
      model(
          options_of(config, batch_shape(config, shape, runtime.mesh()), shape ? &generation->cache : nullptr, runtime),
          parameters, arena, runtime.stream()) {
  if (!shape) {
    validator.emplace(config, runtime, arena);
    return;
  }
  const BatchShape one_each{.micro_batch_size = shape->sequences, .seq_len = 1};
  generation->step.emplace(options_of(config, one_each, &generation->cache, runtime), parameters, arena,
                           runtime.stream());
}

InferenceModel::InferenceModel(const Config& config, const std::optional<GenerationShape>& shape, Runtime& runtime)
    : runtime_(runtime),
      layout_(layout_of_rank(config.model, config.parallel, runtime.mesh())),
      memory_(runtime.allocate([&] {
        Arena plan(runtime.stream().device());
        const InferenceState planned(config, layout_, shape, plan, runtime);
        const MemoryBudget budget = memory_budget(config, runtime);
        CHECK_INPUT(budget.fits(plan.used()), "{} takes {:.1f} GiB, but {:.1f} GiB are free",
                    describe(planned.model.shape(), shape), gib(budget.needed(plan.used())), gib(budget.available));
        return plan.used();
      })) {
  runtime.group().agree_on_files("opening the data", [&] {
    state_ = std::make_unique<InferenceState>(config, layout_, shape, memory_.arena, runtime);
  });
}

void InferenceModel::load(const Config& config, Checkpoint* checkpoint, SavedWeights which) {
  const std::unique_ptr<WeightSource> initial =
      checkpoint != nullptr ? nullptr : open_same_weights(config.init_from, runtime_.group());
  runtime_.group().agree_on_files("reading the weights", [&] {
    if (checkpoint != nullptr) {
      load_weights(*checkpoint, state_->parameters, runtime_.stream(), which);
      load_amax_history(*checkpoint, state_->model.amaxes(), runtime_.stream());
    } else {
      load_initial_weights(config, initial.get(), state_->parameters, runtime_.stream());
    }
  });
  state_->parameters.set(state_->model.weight_casts(), runtime_.stream());
}

}  // namespace octavo
