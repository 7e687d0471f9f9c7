// Batches of samples for one data-parallel rank, read ahead by a few threads.
//
// A step takes the next B global samples of the stream, past the ranges of data.skip, B being global_batch_size or what
// the warm-up has for the step; rank r of R receives the samples r B/R to (r+1) B/R - 1 of them, whole or
// its pieces of each (core/sequence_pieces.h). All ranks hold the
// same state after a step, and that state does not depend on R, so a run may go on with any number of ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "core/sequence_pieces.h"
#include "data/batch_schedule.h"
#include "data/config.h"
#include "data/sample_stream.h"

namespace octavo {

struct LoaderOptions {
  int64_t global_batch_size = 1;                   // samples per step, over all ranks; a multiple of num_ranks
  std::vector<BatchPhase> batch_size_warmup = {};  // other sizes in the first steps (BatchSchedule)
  int64_t steps_done = 0;                          // before the first step that it loads
  int64_t rank = 0;                                // data-parallel rank
  int64_t num_ranks = 1;                           // data-parallel ranks
  ContextRank context = {};                        // among those that share the samples of this data-parallel rank
  int64_t prefetch_depth = 2;                      // batches prepared ahead, at least 1
  bool enters_stage = false;  // the state is of the data of the stage before, of which its sample alone matters
  int64_t vocab_size = 0;     // every token must lie in [0, vocab_size); 0 checks nothing
};

// The first three arrays are [local_batch, seq_len], row-major, local_batch this rank's samples of the step and seq_len
// its tokens of each.
struct Batch {
  int64_t step = 0;                     // batches before this one, since the loader's construction
  std::vector<int32_t> inputs;          // of each sample's tokens but the last
  std::vector<int32_t> targets;         // the token behind each; -1 where the loss ignores the position
  std::vector<int32_t> document_start;  // position in its sample of the first token of the document of each input token
  std::vector<int64_t> dataset;         // [local_batch] that the sample is of
  std::vector<int64_t> dataset_samples;  // by dataset: of the whole step, over all ranks
  std::vector<SampleRange> skipped;      // of data.skip, that this step passed over
  StreamState state_after;               // of the stream once this step is consumed
};

// A sample on its way into a batch: its tokens, and where the document of each begins, [seq_len + 1].
struct SampleScratch {
  explicit SampleScratch(int64_t seq_len) : tokens(static_cast<size_t>(seq_len + 1)), document_start(tokens) {}
  std::vector<int32_t> tokens, document_start;
};

// How many of a batch's targets the loss counts.
int64_t count_targets(std::span<const int32_t> targets);

// InputError unless the JSON has the members of a Loader::state_json(), whatever data it belongs to.
void check_loader_state(const nlohmann::json& state);

// Not movable. next(), state_json() and data_ms() are for one consumer thread.
class Loader {
 public:
  // Opens config.train, checks it against vocab_size, goes to `state` (a state_json()) if one is given, else to the
  // first sample, and starts the
  // reading threads. config.resume_from_sample, where set, is gone to instead, unless the state has gone there before.
  // InputError as SampleStream, and when the batch does not divide.
  Loader(const DataConfig& config, const LoaderOptions& options, const nlohmann::json* state = nullptr);
  // Stops the threads after at most the samples that they are reading.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's batch, valid until the following call; buffers are reused. Waits when none is ready. Throws what
  // a thread threw (Error when a token lies outside the vocabulary) once the batches before it are consumed.
  const Batch& next();

  // Milliseconds that the last next() waited.
  double data_ms() const { return data_ms_; }
  const SampleStream& stream() const { return stream_; }

  // State after the step that the last next() returned (not of what was read ahead): give it to a loader to go on with
  // the following step.
  nlohmann::json state_json() const;
  const StreamState& state() const { return current_ ? current_->batch.state_after : initial_state_; }

 private:
  // A batch on its way.
  struct Slot {
    Batch batch;
    std::vector<Sample> samples;  // of this rank
    size_t taken = 0;             // by threads that read them
    size_t missing = 0;           // not yet read
    std::exception_ptr failure;
  };
  void restore(const nlohmann::json* state);
  void seek_named_sample();
  void stop();
  void run(SampleScratch& scratch);
  Slot* slot_with_work();
  void locate(Slot& slot);
  void pass_over_skipped(Batch& batch);

  DataConfig config_;
  LoaderOptions options_;
  BatchSchedule batch_schedule_;
  SampleStream stream_;  // the threads share it, under mutex_ but for read()
  StreamState initial_state_;
  std::vector<SampleRange> skipped_;  // up to the current batch, by the runs before this one too
  std::optional<int64_t> resumed_from_sample_;
  std::unique_ptr<Slot> current_;  // what the consumer holds
  double data_ms_ = 0;

  std::mutex mutex_;                         // guards what follows
  std::condition_variable work_;             // for the threads
  std::condition_variable ready_;            // for the consumer
  std::deque<std::unique_ptr<Slot>> slots_;  // in the order of the steps
  std::exception_ptr failure_;               // of the batch that would follow those in slots_
  std::vector<std::unique_ptr<Slot>> free_;
  int64_t next_step_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace octavo
