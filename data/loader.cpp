#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "data/sample_batch.h"

namespace octavo {
namespace {

SampleStream open_stream(const DataConfig& config, int64_t vocab_size, const nlohmann::json* state) {
  SampleStream stream(config, config.train, vocab_size);
  if (state != nullptr) stream.restore(*state);
  return stream;
}

}  // namespace

Loader::Loader(const DataConfig& config, const LoaderOptions& options, const nlohmann::json* state)
    : Loader(open_stream(config, options.vocab_size, state), options) {}

Loader::Loader(SampleStream stream, const LoaderOptions& options)
    : options_(options), stream_(std::move(stream)), sample_(stream_.seq_len()) {
  CHECK(options.num_ranks >= 1 && options.rank >= 0 && options.rank < options.num_ranks,
        "loader of rank {} of {} ranks", options.rank, options.num_ranks);
  CHECK_INPUT(options.global_batch_size >= 1 && options.global_batch_size % options.num_ranks == 0,
              "training.global_batch_size is {}, expected a multiple of the {} data-parallel ranks",
              options.global_batch_size, options.num_ranks);
  CHECK(options.prefetch_depth >= 1, "prefetch depth {}, expected at least 1", options.prefetch_depth);
  start();
}

void Loader::start() {
  initial_state_ = stream_.state();
  const auto tokens = static_cast<size_t>(local_batch_size() * stream_.seq_len());
  // One more than is prefetched: the consumer holds one.
  for (int64_t i = 0; i <= options_.prefetch_depth; ++i) {
    auto batch = std::make_unique<Batch>();
    batch->inputs.resize(tokens);
    batch->targets.resize(tokens);
    batch->document_start.resize(tokens);
    batch->state_after = initial_state_;
    free_.push_back(std::move(batch));
  }
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Loader::run() {
  try {
    while (std::unique_ptr<Batch> batch = take_free()) {
      fill(*batch);
      {
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(batch));
      }
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

// Waits for a batch that nobody holds; null when the loader is being destroyed.
std::unique_ptr<Batch> Loader::take_free() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !free_.empty(); });
  if (stopping_) return nullptr;
  std::unique_ptr<Batch> batch = std::move(free_.back());
  free_.pop_back();
  return batch;
}

void Loader::fill(Batch& batch) {
  const int64_t local = local_batch_size();
  batch.step = next_step_++;
  stream_.skip(options_.rank * local);
  for (int64_t row = 0; row < local; ++row) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;  // the half-filled batch is never handed out
    }
    read_sample(stream_, options_.document_mask, sample_, row, batch);
  }
  stream_.skip(options_.global_batch_size - (options_.rank + 1) * local);
  batch.state_after = stream_.state();
}

const Batch& Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
  // On failure the consumer keeps the batch it has, so that state_json() still tells the last good step.
  if (ready_.empty()) std::rethrow_exception(failure_);
  if (current_) free_.push_back(std::move(current_));
  current_ = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  data_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return *current_;
}

nlohmann::json Loader::state_json() const {
  return stream_.state_json(current_ ? current_->state_after : initial_state_);
}

}  // namespace octavo
