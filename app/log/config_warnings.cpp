#include "app/log/config_warnings.h"

#include <fmt/format.h>

namespace octavo {

std::vector<std::string> config_warnings(const Config& config, std::span<const DatasetUse> datasets) {
  std::vector<std::string> warnings;
  const auto [begin, end] = config.schedule_steps();
  if (config.optimizer.warmup_steps > end - begin) {
    warnings.push_back(
        fmt::format("optimizer.warmup_steps is {}, but the schedule has {} steps, so the learning rate never reaches "
                    "optimizer.lr {:g}",
                    config.optimizer.warmup_steps, end - begin, config.optimizer.lr));
  }
  int64_t smaller_batches = 0;
  for (const BatchPhase& phase : config.training.batch_size_warmup) smaller_batches += phase.steps;
  if (smaller_batches > 0 && smaller_batches >= config.total_steps()) {
    warnings.push_back(fmt::format(
        "training.batch_size_warmup has {} steps, but the run has {} steps, so the batch size never reaches "
        "training.global_batch_size {}",
        smaller_batches, config.total_steps(), config.training.global_batch_size));
  }
  for (size_t i = 0; i < datasets.size(); ++i) {
    const DatasetUse& dataset = datasets[i];
    if (config.data.train[i].max_epochs > 0 || dataset.epochs_at_end <= kManyEpochs) continue;
    warnings.push_back(
        fmt::format("this run trains {:.1f} epochs over the dataset {}, and more than {:g} epochs seldom help; use "
                    "fewer training.steps or more data, or set the dataset's max_epochs if this is intended",
                    dataset.epochs_at_end, dataset.name, kManyEpochs));
  }
  if (!config.data.validation.empty() && config.validation.every == 0) {
    warnings.emplace_back(
        "data.validation names datasets, but validation.every is 0, so the run never computes a validation loss");
  }
  return warnings;
}

}  // namespace octavo
