// The samples of the validation loss. They are the same at every validation and for any number of ranks, seed and order
// of training.
//
// Each dataset of data.validation contributes the first n = min(batches * global_batch_size, W) of its W windows, in
// the order of the training permutation (data/window_order.h) with a fixed seed. So they are spread over the whole file
// without repetition. Micro-batch i of rank r of R holds the samples (i R + r) m to (i R + r + 1) m - 1 for
// micro-batches of m. Rows after the last sample are padding: inputs 0 and targets -1, which the loss ignores. So every
// rank has the same number of micro-batches, as collectives require.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

struct ValidationOptions {
  int64_t batches = 20;           // Maximum number of global batches per dataset.
  int64_t global_batch_size = 1;  // Samples per global batch.
  int64_t micro_batch_size = 1;   // Number of rows of a Batch.
  int64_t rank = 0;               // Data-parallel rank.
  int64_t num_ranks = 1;          // Number of data-parallel ranks.
  ContextRank context = {};       // Place among the ranks that share the samples of this data-parallel rank.
  int64_t vocab_size = 0;         // Every token must lie in [0, vocab_size). 0 disables the check.
};

// Set of validation samples, used by one thread.
class ValidationSet {
 public:
  // Opens the datasets with a weight above 0. Throws an InputError like SampleStream and check_windows.
  ValidationSet(const DataConfig& config, const ValidationOptions& options);

  struct Dataset {
    std::string name;
    double weight = 1;        // Weight of its loss relative to the other datasets.
    int64_t num_samples = 0;  // Number of samples over all ranks, without padding.
  };
  const std::vector<Dataset>& datasets() const { return datasets_; }

  // Returns this rank's next micro-batch of a dataset, [micro_batch_size, its share of seq_len], valid until the
  // following call. Returns null after the last one; the call after that starts from the beginning. Batch::step counts
  // micro-batches.
  const Batch* next(size_t dataset);

 private:
  ValidationOptions options_;
  std::vector<Dataset> datasets_;
  std::vector<SampleStream> streams_;  // Streams of samples, one per dataset.
  int64_t next_micro_batch_ = 0;
  SampleScratch scratch_;
  Batch batch_;
};

}  // namespace octavo
