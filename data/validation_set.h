// The samples of the validation loss: the same ones at every validation and for any number of ranks.
//
// Samples 0 to n-1 of the validation datasets in file order (shuffle none), n = min(batches * global_batch_size,
// floor(tokens / (seq_len + 1))), several datasets mixed by weight as in training. Micro-batch i of rank r of R holds
// the samples (i R + r) m to (i R + r + 1) m - 1 for micro-batches of m. Past the end, rows are padded: inputs 0 and
// targets -1, which the loss ignores; so every rank has the same number of micro-batches, as collectives need.
#pragma once

#include <cstdint>
#include <vector>

#include "data/config.h"
#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

struct ValidationOptions {
  int64_t batches = 20;           // at most this many global batches
  int64_t global_batch_size = 1;  // samples per global batch
  int64_t micro_batch_size = 1;   // rows of a Batch
  int64_t rank = 0;               // data-parallel rank
  int64_t num_ranks = 1;          // data-parallel ranks
  int64_t vocab_size = 0;         // every token must lie in [0, vocab_size); 0 checks nothing
  bool document_mask = false;     // no target is the first token of a document
};

// Used by one thread.
class ValidationSet {
 public:
  // InputError as TokenFile and SampleStream, and naming the file of a dataset with fewer than seq_len + 1 tokens.
  ValidationSet(const DataConfig& config, const ValidationOptions& options);

  int64_t num_samples() const { return num_samples_; }              // over all ranks, without padding
  int64_t num_micro_batches() const { return num_micro_batches_; }  // the same on every rank

  // The next micro-batch of this rank, [micro_batch_size, seq_len], valid until the following call; null after the last
  // one, and the call after that begins anew. Batch::step counts micro-batches.
  const Batch* next();

 private:
  void pad(int64_t row);

  ValidationOptions options_;
  SampleStream stream_;
  StreamState initial_state_;
  int64_t num_samples_ = 0, num_micro_batches_ = 0, next_micro_batch_ = 0;
  SampleScratch sample_;
  Batch batch_;
};

}  // namespace octavo
