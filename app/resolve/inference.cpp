#include "app/resolve/inference.h"

#include <algorithm>
#include <bit>

#include "app/inputs/same_files.h"
#include "app/resolve/memory_budget.h"
#include "core/error.h"
#include "core/format.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

LlamaOptions options_of(const Config& config, const BatchShape& shape, Runtime& runtime) {
  return {.config = config.model,
          .shape = shape,
          .precision = config.precision,
          .mode = LlamaMode::kInference,
          .mesh = &runtime.mesh()};
}

// Returns the length to which a sequence is padded. There are few lengths, because a GPU chooses its algorithms for
// each of them.
int64_t padded_length(int64_t tokens) {
  const auto unit = std::max<int64_t>(64, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens))) / 4);
  return (tokens + unit - 1) / unit * unit;
}

BatchShape shape_of_length(int64_t length) { return {.micro_batch_size = 1, .seq_len = length}; }

std::string describe(const Config& config, std::optional<int64_t> max_tokens, const Mesh& mesh) {
  if (max_tokens) return fmt::format("generating a sequence of {} tokens", with_thousands_separators(*max_tokens));
  return fmt::format("a forward pass of {} tokens", with_thousands_separators(batch_shape(config, mesh).tokens()));
}

}  // namespace

InferenceState::InferenceState(const Config& config, const ParameterLayout& layout, std::optional<int64_t> max_tokens,
                               Arena& arena, Runtime& runtime)
    : parameters(layout, config.precision, {.reshard_after_forward = true}, LlamaMode::kInference, &runtime.mesh(),
                 arena, runtime.stream()) {
  if (!max_tokens) {
    model.emplace(options_of(config, batch_shape(config, runtime.mesh()), runtime), parameters, arena,
                  runtime.stream());
    validator.emplace(config, runtime, arena);
    return;
  }
  tokens = arena.allocate("tokens", DType::kInt32, {padded_length(*max_tokens)});
  int64_t bytes = 0;
  for (int64_t length = 0; length < *max_tokens;) {
    length = padded_length(length + 1);
    Arena plan(runtime.stream().device());
    const Llama planned(options_of(config, shape_of_length(length), runtime), parameters, plan, runtime.stream());
    bytes = std::max(bytes, plan.used());
  }
  model_memory = arena.allocate("model of a sequence", DType::kUInt8, {bytes});
}

InferenceModel::InferenceModel(const Config& config, std::optional<int64_t> max_tokens, Runtime& runtime)
    : config_(config),
      runtime_(runtime),
      layout_(layout_of_rank(config.model, config.parallel, runtime.mesh())),
      memory_(runtime.allocate([&] {
        Arena plan(runtime.stream().device());
        const InferenceState planned(config, layout_, max_tokens, plan, runtime);
        const MemoryBudget budget = memory_budget(config.parallel, runtime.mesh().shape(), runtime.place());
        CHECK_INPUT(budget.fits(plan.used()), "{} takes {:.1f} GiB, but {:.1f} GiB are free",
                    describe(config, max_tokens, runtime.mesh()), gib(budget.needed(plan.used())),
                    gib(budget.available));
        return plan.used();
      })) {
  runtime.group().throw_file_errors_on_all_ranks("opening the data", [&] {
    state_ = std::make_unique<InferenceState>(config, layout_, max_tokens, memory_.arena, runtime);
    if (max_tokens) make_model(padded_length(1));
  });
}

// Replaces the model by one for sequences of `length` tokens, in the same memory.
void InferenceModel::make_model(int64_t length) {
  const Tensor& memory = state_->model_memory;
  state_->model.reset();
  runtime_.stream().zero(memory);  // A new arena is zeroed, too.
  runtime_.stream().synchronize();
  Arena arena(memory_.arena.device(), Buffer::adopt(memory.raw(), memory.bytes(), [](void*) {}));
  state_->model.emplace(options_of(config_, shape_of_length(length), runtime_), state_->parameters, arena,
                        runtime_.stream());
}

std::span<const float> InferenceModel::logits_after(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t length = padded_length(count);
  CHECK(count > 0 && length <= state_->tokens.numel(), "{} tokens where at most {} were planned for", count,
        state_->tokens.numel());
  if (length != state_->model->shape().seq_len) make_model(length);
  Stream& stream = runtime_.stream();
  const Tensor inputs = state_->tokens.rows(0, length);
  stream.copy(inputs.raw(), tokens.data(), static_cast<int64_t>(tokens.size_bytes()));
  const Tensor logits = state_->model->logits_of(count - 1, inputs);
  logits_.resize(static_cast<size_t>(logits.numel()));
  std::vector<BFloat16> rounded(logits.dtype() == DType::kBFloat16 ? logits_.size() : 0);
  stream.copy(rounded.empty() ? static_cast<void*>(logits_.data()) : rounded.data(), logits.raw(), logits.bytes());
  stream.synchronize();
  std::ranges::transform(rounded, logits_.begin(), [](BFloat16 x) { return static_cast<float>(x); });
  return logits_;
}

void InferenceModel::load(const Config& config, Checkpoint* checkpoint, SavedWeights which) {
  const std::unique_ptr<WeightSource> initial =
      checkpoint != nullptr ? nullptr : open_same_weights(config.init_from, runtime_.group());
  runtime_.group().throw_file_errors_on_all_ranks("reading the weights", [&] {
    if (checkpoint != nullptr) {
      load_weights(*checkpoint, state_->parameters, runtime_.stream(), which);
      load_amax_history(*checkpoint, state_->model->amaxes(), runtime_.stream());
    } else {
      load_initial_weights(config, initial.get(), state_->parameters, runtime_.stream());
    }
  });
  state_->parameters.cast_weights(state_->model->weight_casts(), runtime_.stream());
}

}  // namespace octavo
