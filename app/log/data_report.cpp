#include "app/log/data_report.h"

#include <cmath>

#include "app/process/events.h"
#include "core/error.h"

namespace octavo {

DataReport::DataReport(const DataConfig& config, const Loader& loader, int64_t samples)
    : config_(config), loader_(loader), samples_(samples), windows_(loader.state().windows) {}

// Returns the epochs at the end of the run, ignoring samples that data.skip will skip.
double DataReport::epochs_at_end(int64_t dataset) const {
  const SampleStream& stream = loader_.stream();
  return stream.epochs(dataset, stream.expected_windows(dataset, loader_.state().next_sample + samples_));
}

void DataReport::check_max_epochs() const {
  for (size_t d = 0; d < config_.train.size(); ++d) {
    const double most = config_.train[d].max_epochs;
    const double epochs = epochs_at_end(static_cast<int64_t>(d));
    CHECK_INPUT(config_.on_max_epochs != OnMaxEpochs::kError || most == 0 || epochs <= most,
                "this run would read the dataset {} {:.2f} times, expected at most its max_epochs {}; use fewer "
                "training.steps, a smaller weight, or data.on_max_epochs: warn",
                loader_.stream().name(static_cast<int64_t>(d)), epochs, most);
  }
}

std::vector<DatasetUse> DataReport::datasets() const {
  const SampleStream& stream = loader_.stream();
  std::vector<DatasetUse> datasets;
  for (int64_t d = 0; d < num_datasets(); ++d) {
    const auto i = static_cast<size_t>(d);
    datasets.push_back({.name = stream.name(d),
                        .tokens = stream.num_tokens(d),
                        .weight = config_.train[i].weight,
                        .epochs = stream.epochs(d, loader_.state().windows[i]),
                        .epochs_at_end = epochs_at_end(d)});
  }
  return datasets;
}

// The first token after a whole number of epochs begins an epoch. So a step that ends with the last token of an epoch
// does not begin the next one.
std::optional<int64_t> begun_epoch(double before, double now) {
  const auto epoch = static_cast<int64_t>(std::ceil(now));
  if (epoch < 2 || epoch <= static_cast<int64_t>(std::ceil(before))) return std::nullopt;
  return epoch;
}

void DataReport::log_events(const Batch& batch, int64_t step) {
  const SampleStream& stream = loader_.stream();
  for (const SampleRange& range : batch.skipped) {
    log_event(EventKind::kNote, step, "data.skip: step {} skipped the samples {} to {}", step, range.begin,
              range.end - 1);
  }
  for (int64_t d = 0; d < num_datasets(); ++d) {
    const auto i = static_cast<size_t>(d);
    const double before = stream.epochs(d, windows_[i]);
    const double now = stream.epochs(d, batch.state_after.windows[i]);
    windows_[i] = batch.state_after.windows[i];
    if (const std::optional<int64_t> epoch = begun_epoch(before, now)) {
      log_event(EventKind::kNote, step, "data {}: epoch {} begins with step {}", stream.name(d), *epoch, step);
    }
    const double most = config_.train[i].max_epochs;
    if (most > 0 && before <= most && now > most) {
      log_event(EventKind::kWarning, step, "data {}: step {} exceeds the dataset's max_epochs {}", stream.name(d), step,
                most);
    }
  }
}

NumbersByName DataReport::epochs(const StreamState& state) const {
  NumbersByName epochs;
  for (int64_t d = 0; d < num_datasets(); ++d) {
    epochs.emplace_back(loader_.stream().name(d), loader_.stream().epochs(d, state.windows[static_cast<size_t>(d)]));
  }
  return epochs;
}

NumbersByName DataReport::means(const std::vector<double>& sums, const std::vector<int64_t>& targets) const {
  NumbersByName means;
  for (size_t d = 0; num_datasets() > 1 && d < sums.size(); ++d) {
    if (targets[d] == 0) continue;
    means.emplace_back(loader_.stream().name(static_cast<int64_t>(d)), sums[d] / static_cast<double>(targets[d]));
  }
  return means;
}

}  // namespace octavo
