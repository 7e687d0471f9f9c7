// The samples of the validation loss: the same ones at every validation and for any number of ranks, seeds and orders
// of training.
//
// Of each dataset of data.validation the first n = min(batches * global_batch_size, W) windows of its W, drawn by the
// permutation of training (data/window_order.h) with a seed of its own: spread over the whole file, without one twice.
// Micro-batch i of rank r of R holds the samples (i R + r) m to (i R + r + 1) m - 1 for micro-batches of m. Past the
// end, rows are padded: inputs 0 and targets -1, which the loss ignores; so every rank has the same number of
// micro-batches, as collectives need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

struct ValidationOptions {
  int64_t batches = 20;           // at most this many global batches of a dataset
  int64_t global_batch_size = 1;  // samples per global batch
  int64_t micro_batch_size = 1;   // rows of a Batch
  int64_t rank = 0;               // data-parallel rank
  int64_t num_ranks = 1;          // data-parallel ranks
  ContextRank context = {};       // among those that share the samples of this data-parallel rank
  int64_t vocab_size = 0;         // every token must lie in [0, vocab_size); 0 checks nothing
};

// Used by one thread.
class ValidationSet {
 public:
  // Opens the datasets of weight above 0. InputError as SampleStream, and naming the file of a dataset with fewer than
  // seq_len + 1 tokens.
  ValidationSet(const DataConfig& config, const ValidationOptions& options);

  struct Dataset {
    std::string name;
    double weight = 1;        // of its loss among those of the others
    int64_t num_samples = 0;  // over all ranks, without padding
  };
  const std::vector<Dataset>& datasets() const { return datasets_; }

  // The next micro-batch of this rank of that dataset, [micro_batch_size, its share of seq_len], valid until the
  // following call; null after the last one, and the call after that begins anew. Batch::step counts micro-batches.
  const Batch* next(size_t dataset);

 private:
  int64_t num_micro_batches(size_t dataset) const;

  ValidationOptions options_;
  std::vector<Dataset> datasets_;
  std::vector<SampleStream> streams_;  // of one dataset each
  int64_t next_micro_batch_ = 0;
  SampleScratch scratch_;
  Batch batch_;
};

}  // namespace octavo
