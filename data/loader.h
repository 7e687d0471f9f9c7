// Batches of samples for one data-parallel rank, prepared ahead by a thread.
//
// A step takes the next global_batch_size global samples of the stream; rank r of R receives the samples
// [r B/R, (r+1) B/R) of them and passes over the rest by their lengths. All ranks hold the same state after a step, and
// that state does not depend on R, so a run may go on with any number of ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <thread>
#include <vector>

#include "data/config.h"
#include "data/sample_stream.h"

namespace octavo {

struct LoaderOptions {
  int64_t global_batch_size = 1;  // samples per step, over all ranks; a multiple of num_ranks
  int64_t rank = 0;               // data-parallel rank
  int64_t num_ranks = 1;          // data-parallel ranks
  int64_t prefetch_depth = 2;     // batches prepared ahead, at least 1
  int64_t vocab_size = 0;         // every token must lie in [0, vocab_size); 0 checks nothing
  bool document_mask = false;     // no target is the first token of a document
};

// The three arrays are [local_batch, seq_len], row-major.
struct Batch {
  int64_t step = 0;                     // batches before this one, since the loader's construction
  std::vector<int32_t> inputs;          // first seq_len tokens of each sample
  std::vector<int32_t> targets;         // last seq_len tokens; -1 where the loss ignores the position
  std::vector<int32_t> document_start;  // position in its sample of the first token of the document of each input token
  StreamState state_after;              // of the stream once this step is consumed
};

// A sample on its way into a batch: its tokens, and where the document of each begins, [seq_len + 1].
struct SampleScratch {
  explicit SampleScratch(int64_t seq_len) : tokens(static_cast<size_t>(seq_len + 1)), document_start(tokens) {}
  std::vector<int32_t> tokens, document_start;
};

// Not movable. next(), state_json() and data_ms() are for one consumer thread.
class Loader {
 public:
  // Opens config.train, checks it against vocab_size, goes to `state` (a state_json()) if one is given, and starts the
  // prefetching thread. InputError as TokenFile and SampleStream, and when the batch does not divide.
  Loader(const DataConfig& config, const LoaderOptions& options, const nlohmann::json* state = nullptr);
  // Reads on from wherever `stream` stands; vocab_size is then the stream's.
  Loader(SampleStream stream, const LoaderOptions& options);
  // Stops the thread after at most the sample it is reading.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's batch, valid until the following call; buffers are reused. Waits when none is ready. Throws what
  // the thread threw (Error when a token lies outside the vocabulary) once the batches before it are consumed.
  const Batch& next();

  // Milliseconds that the last next() waited.
  double data_ms() const { return data_ms_; }
  // Samples per step of this rank.
  int64_t local_batch_size() const { return options_.global_batch_size / options_.num_ranks; }
  const SampleStream& stream() const { return stream_; }

  // State after the step that the last next() returned (not of what was prefetched beyond it): give it to a loader to
  // go on with the following step.
  nlohmann::json state_json() const;

 private:
  void start();
  void run();
  void fill(Batch& batch);
  std::unique_ptr<Batch> take_free();

  LoaderOptions options_;
  SampleStream stream_;  // used by the thread alone once it runs, apart from its constants
  SampleScratch sample_;
  int64_t next_step_ = 0;
  StreamState initial_state_;
  std::unique_ptr<Batch> current_;  // what the consumer holds
  double data_ms_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Batch>> ready_;
  std::vector<std::unique_ptr<Batch>> free_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace octavo
