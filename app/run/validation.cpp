#include "app/run/validation.h"

#include <algorithm>

#include "core/log.h"
#include "kernels/math/reduce.h"

namespace octavo {

ValidationBuffers::ValidationBuffers(const Config& config, const Mesh& mesh, Arena& arena)
    : batch(batch_shape(config, mesh), config.training.micro_batch_size, config.model.vocab_size, arena, mesh.stream()),
      sum(arena.allocate("validation loss", DType::kFloat32, {1})) {}

Validator::Validator(const Config& config, Runtime& runtime, Arena& arena)
    : runtime_(&runtime),
      samples_(config.data, {.batches = config.validation.batches,
                             .global_batch_size = config.training.global_batch_size,
                             .micro_batch_size = config.training.micro_batch_size,
                             .rank = runtime.mesh().data_rank(),
                             .num_ranks = runtime.mesh().shape().data(),
                             .context = runtime.mesh().context_rank(),
                             .vocab_size = config.model.vocab_size}),
      buffers_(config, runtime.mesh(), arena) {}

std::optional<double> mean_loss(std::span<const ValidationSet::Dataset> datasets, std::span<const DatasetLoss> losses) {
  double sum = 0;
  double weights = 0;
  for (size_t d = 0; d < datasets.size(); ++d) {
    if (losses[d].targets == 0) continue;
    sum += datasets[d].weight * losses[d].loss;
    weights += datasets[d].weight;
  }
  return weights > 0 ? std::optional(sum / weights) : std::nullopt;
}

// Returns the next batch. An invalid token in the data of one rank is an error on all ranks.
const Batch* Validator::next_batch(size_t dataset) {
  const Batch* batch = nullptr;
  runtime_->group().throw_on_all_ranks([&] { batch = samples_.next(dataset); });
  return batch;
}

std::optional<ValidationLoss> Validator::loss(Llama& model, const std::function<bool()>& should_stop) {
  ValidationLoss result;
  for (size_t d = 0; d < datasets().size(); ++d) {
    const std::optional<DatasetLoss> dataset = dataset_loss(d, model, should_stop);
    if (!dataset) return std::nullopt;
    result.by_dataset.push_back(*dataset);
  }
  result.loss = mean_loss(datasets(), result.by_dataset);
  return result;
}

std::optional<DatasetLoss> Validator::dataset_loss(size_t dataset, Llama& model,
                                                   const std::function<bool()>& should_stop) {
  Stream& stream = runtime_->stream();
  double total = 0;
  double targets = 0;
  while (const Batch* batch = next_batch(dataset)) {
    if (should_stop()) return std::nullopt;
    targets += static_cast<double>(count_targets(batch->targets));
    buffers_.batch.upload(*batch);
    model.forward(buffers_.batch.micro_batch(0));
    if (!model.losses().defined()) continue;  // The last pipeline stage has the losses.
    stream.zero(buffers_.sum);
    sum({.out = buffers_.sum, .x = model.losses()}, stream);
    float value = 0;
    stream.copy(&value, buffers_.sum.raw(), sizeof(value));
    stream.synchronize();
    total += static_cast<double>(value);
  }
  total = runtime_->sum_over_tokens(total);
  targets = runtime_->sum_over_tokens(targets);
  if (targets == 0 && runtime_->group().is_root()) {
    log_warning("data.validation {}: all targets are masked (data.document_mask), so it is left out of validation_loss",
                datasets()[dataset].name);
  }
  return DatasetLoss{total / std::max(targets, 1.0), static_cast<int64_t>(targets)};
}

}  // namespace octavo
