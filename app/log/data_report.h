// Reports on the data of a run: how much of each dataset it uses, when an epoch begins, and which samples are skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/records/metric_row.h"
#include "data/config.h"
#include "data/loader.h"

namespace octavo {

// How much of a dataset a run uses.
struct DatasetUse {
  std::string name;
  int64_t tokens = 0;  // Number of tokens in one epoch.
  double weight = 0;
  double epochs = 0;         // Number of epochs that the run has done so far.
  double epochs_at_end = 0;  // Number of epochs at the end of the run.
};

// Returns the epoch, counted from 1, that begins while the number of completed epochs rises from `before` to `now`, or
// the last one if several begin. Returns nothing if no epoch, or only the first one, begins.
std::optional<int64_t> begun_epoch(double before, double now);

class DataReport {
 public:
  // `samples` is the number of samples that remain until the end of the run or of its current stage.
  // Requires: `config` and `loader` outlive the object.
  DataReport(const DataConfig& config, const Loader& loader, int64_t samples);

  // Throws an InputError if the run would exceed a dataset's max_epochs and data.on_max_epochs is error.
  void check_max_epochs() const;
  std::vector<DatasetUse> datasets() const;
  // Returns sentences about the tokens around documents (SampleStream::notes).
  const std::vector<std::string>& notes() const { return loader_.stream().notes(); }
  int64_t next_sample() const { return loader_.state().next_sample; }
  // Logs the events in the batch of a step: skipped ranges, beginning epochs, and an exceeded max_epochs.
  void log_events(const Batch& batch, int64_t step);

  NumbersByName epochs(const StreamState& state) const;
  // Returns the mean of each dataset that has targets, given sums and numbers of targets by dataset. Empty if there is
  // only one dataset.
  NumbersByName means(const std::vector<double>& sums, const std::vector<int64_t>& targets) const;

 private:
  double epochs_at_end(int64_t dataset) const;
  int64_t num_datasets() const { return loader_.stream().num_datasets(); }

  const DataConfig& config_;
  const Loader& loader_;
  int64_t samples_;
  std::vector<int64_t> windows_;  // Number of windows read from each dataset up to the last batch of log_events().
};

}  // namespace octavo
