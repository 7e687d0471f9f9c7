// Batches of samples for one data-parallel rank, read ahead by a few threads.
//
// A step takes the next B global samples of the stream that data.skip does not exclude. B is global_batch_size, or the
// batch size of the warm-up for the step. Rank r of R receives the samples r B/R to (r+1) B/R - 1 of them. Under
// context parallelism it receives only its chunks of each sample (core/sequence_chunks.h). All ranks have the same
// state after a step. The state does not depend on R, so a run may resume on any number of ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/sequence_chunks.h"
#include "data/config.h"
#include "data/sample_stream.h"

namespace octavo {

// A call of next() that waits for longer than usual.
struct DataWait {
  int64_t step = 0;  // Step whose batch is not read yet, from 1.
  double seconds = 0;
  std::string file = {};  // File with the first sample that is not read yet. Empty if no sample was located.
};

struct LoaderOptions {
  int64_t global_batch_size = 1;                   // Samples per step, over all ranks. Must be a multiple of num_ranks.
  std::vector<BatchPhase> batch_size_warmup = {};  // Other batch sizes for the first steps (BatchSchedule).
  int64_t steps_done = 0;                          // Number of steps before the first one that is loaded.
  int64_t rank = 0;                                // Data-parallel rank.
  int64_t num_ranks = 1;                           // Number of data-parallel ranks.
  ContextRank context = {};  // Place among the ranks that share the samples of this data-parallel rank.
  // Whether the state was saved in the previous stage, with other data. Then only the number of its next sample is
  // used.
  bool enters_stage = false;
  int64_t vocab_size = 0;  // Every token must lie in [0, vocab_size). 0 disables the check.
  // Called by next() when it has waited for `patience`, at most once per kWaitInterval. May be empty.
  std::function<void(const DataWait&)> on_wait = {};
  std::chrono::milliseconds patience{10'000};
};
inline constexpr std::chrono::seconds kWaitInterval{60};

// This rank's samples of one step. inputs, targets and document_start are [local_batch, seq_len], row-major.
// local_batch is the number of this rank's samples in the step, and seq_len is the number of tokens that it has of each
// sample.
struct Batch {
  int64_t step = 0;              // Number of batches that the loader returned before this one.
  std::vector<int32_t> inputs;   // All tokens of each sample except the last.
  std::vector<int32_t> targets;  // The token after each input. -1 where the loss ignores the position.
  // For each input token, the position in its sample of the first token of its document.
  std::vector<int32_t> document_start;
  std::vector<int64_t> dataset;          // [local_batch] Dataset of each sample.
  std::vector<int64_t> dataset_samples;  // Number of samples of the whole step per dataset, over all ranks.
  std::vector<SampleRange> skipped;      // Ranges of data.skip that this step skipped.
  StreamState state_after;               // State of the stream after this step.
};

// A sample before it becomes a row of a batch: its tokens, and the beginning of the document of each token, [seq_len +
// 1].
struct SampleScratch {
  explicit SampleScratch(int64_t seq_len) : tokens(static_cast<size_t>(seq_len + 1)), document_start(tokens) {}
  std::vector<int32_t> tokens, document_start;
};

// Throws an InputError if a dataset has fewer than seq_len + 1 tokens, because a window would repeat its text. The
// message names the dataset's first file. `sources` are the datasets of `stream`. Datasets with weight 0 do not count,
// because they are never read.
void check_windows(const SampleStream& stream, std::span<const DatasetSource> sources);

// Resizes the batch to `rows` samples with `share` tokens each.
void resize(Batch& batch, int64_t rows, int64_t share);

// Reads the rank's share of `sample` into row `row` of the batch. With a document mask the target is -1 where it is the
// first token of a document, because no earlier token belongs to that document.
void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, const ContextRank& context,
                 SampleScratch& scratch, Batch& batch);

// Appends the rank's share of each row of `whole`, whose rows have seq_len tokens.
void append_share(const Batch& whole, const ContextRank& context, int64_t seq_len, Batch& batch);

// Makes a row of padding: inputs 0 and targets -1, which the loss ignores.
void pad_row(Batch& batch, int64_t row, int64_t share);

// Returns the number of targets that count in the loss.
int64_t count_targets(std::span<const int32_t> targets);

// Throws an InputError unless the JSON has the members of a Loader::state_json(), whatever data it belongs to.
void check_loader_state(const nlohmann::json& state);

// Not movable. next(), state_json() and data_ms() are for one consumer thread.
class Loader {
 public:
  // Opens config.train, checks it against vocab_size, seeks to `state` (a state_json()) or to the first sample, and
  // starts the reading threads. If config.resume_from_sample is set, it seeks to that sample instead, unless the run
  // that saved the state already did. Throws an InputError like SampleStream and check_windows,
  // and if the batch does not divide evenly.
  Loader(const DataConfig& config, const LoaderOptions& options, const nlohmann::json* state = nullptr);
  // Stops the reading threads. Waits until each thread has finished the sample that it is reading.
  ~Loader();

  // Returns the next step's batch, valid until the following call because buffers are reused. Waits if none is ready.
  // Throws what a thread threw (an Error if a token lies outside the vocabulary) after the batches before it were
  // consumed.
  const Batch& next();

  // Rolls back to the end of step `steps_done`, at which state_json() of this loader was `state`. Opens no file.
  void rewind(const nlohmann::json& state, int64_t steps_done);

  // Returns the milliseconds that the last next() waited.
  double data_ms() const { return data_ms_; }
  const SampleStream& stream() const { return stream_; }

  // Returns the state after the step that the last next() returned, regardless of what was read ahead. A loader with
  // this state continues with the following step.
  nlohmann::json state_json() const;
  const StreamState& state() const { return current_ ? current_->batch.state_after : initial_state_; }

 private:
  // A batch that is being prepared.
  struct Slot {
    Batch batch;
    std::vector<Sample> samples;  // Samples of this rank.
    size_t taken = 0;             // Number of samples that threads took for reading.
    std::vector<bool> read;       // Whether each sample is read.
    size_t missing = 0;           // Number of samples that are not yet read.
    std::exception_ptr failure;
  };
  void restore(const nlohmann::json* state);
  void seek_named_sample();
  void start();
  void stop();
  void run(SampleScratch& scratch);
  Slot* slot_with_work();
  void locate(Slot& slot);
  DataWait describe_wait() const;
  void skip_ranges(Batch& batch);

  DataConfig config_;
  LoaderOptions options_;
  BatchSchedule batch_schedule_;
  SampleStream stream_;  // Shared by the threads. Guarded by mutex_, except for read().
  StreamState initial_state_;
  // Ranges that were skipped up to the current batch, also by the runs before this one.
  std::vector<SampleRange> skipped_;
  std::optional<int64_t> resumed_from_sample_;
  std::unique_ptr<Slot> current_;  // Batch that the consumer uses at the moment.
  double data_ms_ = 0;
  std::chrono::steady_clock::time_point next_notice_ = {};  // Earliest time of the next on_wait().

  std::mutex mutex_;                         // Guards the members below.
  std::condition_variable work_;             // Wakes the threads.
  std::condition_variable ready_;            // Wakes the consumer.
  std::deque<std::unique_ptr<Slot>> slots_;  // Batches in the order of the steps.
  // Exception of the batch after those in slots_, whose samples could not be located.
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Slot>> free_;
  int64_t next_step_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace octavo
