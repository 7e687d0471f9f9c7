// Reports on the data of a run: how much of each dataset it takes, when an epoch begins, and which samples are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/records/metric_row.h"
#include "data/config.h"
#include "data/loader.h"

namespace octavo {

// The use that a run makes of a dataset.
struct DatasetUse {
  std::string name;
  int64_t tokens = 0;  // of one pass
  double weight = 0;
  double epochs = 0;  // epochs so far, and at the end of the run
  double epochs_at_end = 0;
};

class DataReport {
 public:
  // `loader` must outlive it. `samples` are still to be trained on, up to the end of the run or of a stage of it.
  DataReport(const DataConfig& config, const Loader& loader, int64_t samples);

  // InputError where the run would pass a dataset's max_epochs and data.on_max_epochs is error.
  void check_max_epochs() const;
  std::vector<DatasetUse> datasets() const;
  int64_t next_sample() const { return loader_.state().next_sample; }
  // Logs the events of the batch of a step: ranges that are skipped, epochs that begin, a max_epochs that is exceeded.
  void log_events(const Batch& batch, int64_t step);

  NumbersByName epochs(const StreamState& state) const;
  // Returns the mean of each dataset that has targets, from sums and numbers of targets by dataset. Empty for a single
  // dataset.
  NumbersByName means(const std::vector<double>& sums, const std::vector<int64_t>& targets) const;

 private:
  double epochs_at_end(int64_t dataset) const;
  int64_t num_datasets() const { return loader_.stream().num_datasets(); }

  const DataConfig& config_;
  const Loader& loader_;
  int64_t samples_;
  std::vector<int64_t> draws_;  // windows of each dataset that are reported
};

}  // namespace octavo
