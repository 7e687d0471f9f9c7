#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files/json_input.h"
#include "core/suggestions.h"
#include "core/thread.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

constexpr const char* kSaved = "the loader state";

Json to_json(const std::vector<SampleRange>& ranges) {
  Json json = Json::array();
  for (const SampleRange& range : ranges) json.push_back({range.begin, range.end});
  return json;
}

std::vector<SampleRange> ranges_from_json(const Json& json) {
  std::vector<SampleRange> ranges;
  CHECK_INPUT(json.is_array(), "{}: its skipped samples are {}, expected a list of [A, B]", kSaved, json.dump());
  for (const Json& range : json) {
    CHECK_INPUT(range.is_array() && range.size() == 2, "{}: a range of skipped samples is {}, expected [A, B]", kSaved,
                range.dump());
    ranges.push_back({as_integer(range.at(0), kSaved), as_integer(range.at(1), kSaved)});
  }
  return ranges;
}

}  // namespace

void check_windows(const SampleStream& stream, std::span<const DatasetSource> sources) {
  for (size_t d = 0; d < sources.size(); ++d) {
    const int64_t tokens = stream.num_tokens(static_cast<int64_t>(d));
    CHECK_INPUT(sources[d].weight == 0 || tokens > stream.seq_len(),
                "{}: has {} tokens, expected at least data.seq_len + 1 = {}; use more text or a smaller data.seq_len",
                sources[d].paths.front(), tokens, stream.seq_len() + 1);
  }
}

void resize(Batch& batch, int64_t rows, int64_t share) {
  for (std::vector<int32_t>* array : {&batch.inputs, &batch.targets, &batch.document_start}) {
    array->resize(static_cast<size_t>(rows * share));
  }
}

void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, const ContextRank& context,
                 SampleScratch& scratch, Batch& batch) {
  const auto& [tokens, document_start] = scratch;
  stream.read(sample, scratch.tokens, scratch.document_start);
  const int64_t length = stream.seq_len() / context.whole_chunks();
  int64_t next = row * context.share(stream.seq_len());
  for (int64_t i = 0; i < context.chunks(); ++i) {
    const int64_t begin = context.chunk(i) * length;
    std::copy_n(tokens.begin() + begin, length, batch.inputs.begin() + next);
    std::copy_n(tokens.begin() + begin + 1, length, batch.targets.begin() + next);
    std::copy_n(document_start.begin() + begin, length, batch.document_start.begin() + next);
    for (int64_t t = begin + 1; stream.document_mask() && t <= begin + length; ++t) {
      const bool begins = document_start[static_cast<size_t>(t)] == t;
      if (begins) batch.targets[static_cast<size_t>(next + t - begin - 1)] = -1;
    }
    next += length;
  }
}

void append_share(const Batch& whole, const ContextRank& context, int64_t seq_len, Batch& batch) {
  const int64_t share = context.share(seq_len);
  for (int64_t row = 0; row < std::ssize(whole.inputs) / seq_len; ++row) {
    for (int64_t t = 0; t < share; ++t) {
      const auto token = static_cast<size_t>(row * seq_len + context.position(t, seq_len));
      batch.inputs.push_back(whole.inputs[token]);
      batch.targets.push_back(whole.targets[token]);
      batch.document_start.push_back(whole.document_start[token]);
    }
  }
}

void pad_row(Batch& batch, int64_t row, int64_t share) {
  const int64_t begin = row * share;
  std::fill_n(batch.inputs.begin() + begin, share, 0);
  std::fill_n(batch.targets.begin() + begin, share, -1);
  std::fill_n(batch.document_start.begin() + begin, share, 0);
}

int64_t count_targets(std::span<const int32_t> targets) {
  return std::ranges::count_if(targets, [](int32_t id) { return id >= 0; });
}

void check_loader_state(const Json& state) {
  check_stream_state(state);
  ranges_from_json(state.value("skipped", Json::array()));
  if (const Json saved = state.value("resumed_from_sample", Json()); !saved.is_null()) as_integer(saved, kSaved);
}

Loader::Loader(const DataConfig& config, const LoaderOptions& options, const Json* state)
    : config_(config),
      options_(options),
      batch_schedule_(options.global_batch_size, options.batch_size_warmup),
      stream_(config, config.train, options.vocab_size) {
  CHECK(options.num_ranks >= 1 && options.rank >= 0 && options.rank < options.num_ranks,
        "the rank of the loader is {}, expected one of {} ranks", options.rank, options.num_ranks);
  CHECK_INPUT(options.global_batch_size >= 1 && options.global_batch_size % options.num_ranks == 0,
              "training.global_batch_size is {}, expected a multiple of the {} data-parallel ranks{}",
              options.global_batch_size, options.num_ranks,
              would_work(multiples_near(options.global_batch_size, options.num_ranks)));
  CHECK_INPUT(config.reader_threads >= 1, "data.reader_threads is {}, expected at least 1", config.reader_threads);
  check_windows(stream_, config.train);
  config_.skip = merged_ranges(config.skip);
  restore(state);
  constexpr int kSlots = 3;  // Two batches are prepared ahead, and the consumer holds one.
  for (int i = 0; i < kSlots; ++i) {
    auto slot = std::make_unique<Slot>();
    resize(slot->batch, options_.global_batch_size / options_.num_ranks, options_.context.share(stream_.seq_len()));
    free_.push_back(std::move(slot));
  }
  start();
}

Loader::~Loader() { stop(); }

// Starts to read at the stream's state.
void Loader::start() {
  initial_state_ = stream_.state();
  stopping_ = false;
  threads_.reserve(static_cast<size_t>(config_.reader_threads));
  try {
    for (int64_t i = 0; i < config_.reader_threads; ++i) {
      threads_.push_back(
          start_thread("reading data", [this, scratch = SampleScratch(stream_.seq_len())]() mutable { run(scratch); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

void Loader::rewind(const Json& state, int64_t steps_done) {
  stop();
  if (current_) free_.push_back(std::move(current_));
  for (std::unique_ptr<Slot>& slot : slots_) free_.push_back(std::move(slot));
  slots_.clear();
  failure_ = nullptr;
  next_step_ = 0;
  options_.steps_done = steps_done;
  options_.enters_stage = false;
  restore(&state);
  start();
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Loader::seek_named_sample() {
  CHECK_INPUT(
      *config_.resume_from_sample >= config_.origin.sample,
      "data.resume_from_sample is {}, but the current stage of the run begins at sample {}, expected at least that "
      "sample",
      *config_.resume_from_sample, config_.origin.sample);
  stream_.seek(*config_.resume_from_sample);
}

// If a job is requeued with data.resume_from_sample still in its config, it continues where it was. A stage begins at
// its first sample, even if data.resume_from_sample made the previous stage repeat samples, so that it ended at an
// earlier sample.
void Loader::restore(const Json* state) {
  resumed_from_sample_ = config_.resume_from_sample;
  if (state == nullptr && config_.resume_from_sample) return seek_named_sample();
  if (state == nullptr) return stream_.seek(config_.origin.sample);
  check_loader_state(*state);
  const Json saved = state->value("resumed_from_sample", Json());
  const bool goes_elsewhere = config_.resume_from_sample && saved != *config_.resume_from_sample;
  skipped_ = ranges_from_json(state->value("skipped", Json::array()));
  if (goes_elsewhere) return seek_named_sample();
  if (!saved.is_null()) resumed_from_sample_ = as_integer(saved, kSaved);
  if (options_.enters_stage) {
    return stream_.seek(std::max(integer_at(*state, "next_sample", kSaved), config_.origin.sample));
  }
  stream_.restore(*state);
}

void Loader::run(SampleScratch& scratch) {
  std::unique_lock lock(mutex_);
  while (true) {
    Slot* slot = nullptr;
    work_.wait(lock, [&] { return stopping_ || (slot = slot_with_work()) != nullptr; });
    if (stopping_) return;
    const size_t row = slot->taken++;
    lock.unlock();
    std::exception_ptr failure;
    try {
      read_sample(stream_, slot->samples[row], static_cast<int64_t>(row), options_.context, scratch, slot->batch);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !slot->failure) slot->failure = failure;
    slot->read[row] = true;
    if (--slot->missing == 0) ready_.notify_all();
  }
}

// Returns the first slot with a sample that no thread has taken yet, a new slot if there is space, or null.
Loader::Slot* Loader::slot_with_work() {
  for (const auto& slot : slots_) {
    if (slot->taken < slot->samples.size()) return slot.get();
  }
  if (failure_ || free_.empty()) return nullptr;
  try {
    locate(*free_.back());
    slots_.push_back(std::move(free_.back()));
  } catch (...) {
    failure_ = std::current_exception();
    ready_.notify_all();
    return nullptr;
  }
  free_.pop_back();
  work_.notify_all();
  return slots_.back().get();
}

void Loader::locate(Slot& slot) {
  Batch& batch = slot.batch;
  slot.samples.clear();
  batch.step = next_step_++;
  const int64_t global = batch_schedule_.batch_size(options_.steps_done + batch.step + 1);
  CHECK(global % options_.num_ranks == 0, "step {} takes {} samples, expected a multiple of the {} data-parallel ranks",
        options_.steps_done + batch.step + 1, global, options_.num_ranks);
  const int64_t local = global / options_.num_ranks;
  resize(batch, local, options_.context.share(stream_.seq_len()));
  batch.skipped.clear();
  batch.dataset.clear();
  batch.dataset_samples.assign(static_cast<size_t>(stream_.num_datasets()), 0);
  for (int64_t i = 0; i < global; ++i) {
    skip_ranges(batch);
    const Sample sample = stream_.next();
    ++batch.dataset_samples[static_cast<size_t>(sample.dataset)];
    if (i / local != options_.rank) continue;
    slot.samples.push_back(sample);
    batch.dataset.push_back(sample.dataset);
  }
  batch.state_after = stream_.state();
  slot.taken = 0;
  slot.missing = slot.samples.size();
  slot.read.assign(slot.missing, false);
  slot.failure = nullptr;
}

void Loader::skip_ranges(Batch& batch) {
  for (const SampleRange& range : config_.skip) {
    const int64_t next = stream_.next_sample();
    if (next < range.begin || next >= range.end) continue;
    batch.skipped.push_back({next, range.end});
    stream_.seek(range.end);
  }
}

DataWait Loader::describe_wait() const {
  DataWait wait{.step = options_.steps_done + (current_ ? current_->batch.step + 1 : 0) + 1};
  if (slots_.empty()) return wait;
  const Slot& slot = *slots_.front();
  const auto unread = std::ranges::find(slot.read, false) - slot.read.begin();
  wait.file = stream_.path_of(slot.samples[static_cast<size_t>(unread)]);
  return wait;
}

const Batch& Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto is_ready = [this] { return slots_.empty() ? failure_ != nullptr : slots_.front()->missing == 0; };
  while (!ready_.wait_until(lock, std::max(begin + options_.patience, next_notice_), is_ready)) {
    const auto now = std::chrono::steady_clock::now();
    next_notice_ = now + kWaitInterval;
    DataWait wait = describe_wait();
    wait.seconds = std::chrono::duration<double>(now - begin).count();
    lock.unlock();
    if (options_.on_wait) options_.on_wait(wait);
    lock.lock();
  }
  // After a failure the consumer keeps its batch, so that state_json() still describes the last good step.
  if (slots_.empty()) std::rethrow_exception(failure_);
  if (slots_.front()->failure) std::rethrow_exception(slots_.front()->failure);
  if (current_) free_.push_back(std::move(current_));
  current_ = std::move(slots_.front());
  slots_.pop_front();
  lock.unlock();
  work_.notify_all();
  const Batch& batch = current_->batch;
  skipped_.insert(skipped_.end(), batch.skipped.begin(), batch.skipped.end());
  data_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return batch;
}

Json Loader::state_json() const {
  Json json = stream_.state_json(state());
  json["skipped"] = to_json(skipped_);
  json["resumed_from_sample"] = resumed_from_sample_ ? Json(*resumed_from_sample_) : Json();
  return json;
}

}  // namespace octavo
