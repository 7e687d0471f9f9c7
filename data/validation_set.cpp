#include "data/validation_set.h"

#include <algorithm>

#include "core/error.h"
#include "data/sample_batch.h"

namespace octavo {
namespace {

SampleStream open_stream(const DataConfig& config, int64_t vocab_size) {
  CHECK_INPUT(!config.validation.empty(), "data.validation names no dataset, expected at least one");
  DataConfig in_file_order = config;
  in_file_order.shuffle = Shuffle::kNone;
  return SampleStream(in_file_order, config.validation, vocab_size);
}

}  // namespace

ValidationSet::ValidationSet(const DataConfig& config, const ValidationOptions& options)
    : options_(options),
      stream_(open_stream(config, options.vocab_size)),
      initial_state_(stream_.state()),
      sample_(stream_.seq_len()) {
  CHECK_INPUT(options.batches >= 1, "validation.batches is {}, expected at least 1", options.batches);
  CHECK(options.global_batch_size >= 1 && options.micro_batch_size >= 1,
        "validation batch of {} in micro-batches of {}", options.global_batch_size, options.micro_batch_size);
  CHECK(options.num_ranks >= 1 && options.rank >= 0 && options.rank < options.num_ranks,
        "validation on rank {} of {} ranks", options.rank, options.num_ranks);
  const int64_t length = stream_.seq_len() + 1;
  for (int64_t d = 0; d < stream_.num_datasets(); ++d) {
    CHECK_INPUT(stream_.num_tokens(d) >= length,
                "{}: has {} tokens, expected at least data.seq_len + 1 = {} to validate on", stream_.file(d).path(),
                stream_.num_tokens(d), length);
  }
  num_samples_ = stream_.num_tokens() / length;
  if (options.batches <= num_samples_ / options.global_batch_size) {
    num_samples_ = options.batches * options.global_batch_size;
  }
  const int64_t rows = options.num_ranks * options.micro_batch_size;
  num_micro_batches_ = (num_samples_ + rows - 1) / rows;

  const auto tokens = static_cast<size_t>(options.micro_batch_size * stream_.seq_len());
  batch_.inputs.resize(tokens);
  batch_.targets.resize(tokens);
  batch_.document_start.resize(tokens);
}

const Batch* ValidationSet::next() {
  if (next_micro_batch_ == num_micro_batches_) {
    next_micro_batch_ = 0;
    return nullptr;
  }
  if (next_micro_batch_ == 0) stream_.set_state(initial_state_);
  batch_.step = next_micro_batch_;
  const int64_t first = (next_micro_batch_ * options_.num_ranks + options_.rank) * options_.micro_batch_size;
  stream_.skip(std::max<int64_t>(0, std::min(first, num_samples_) - stream_.next_sample()));
  for (int64_t row = 0; row < options_.micro_batch_size; ++row) {
    if (first + row < num_samples_) {
      read_sample(stream_, options_.document_mask, sample_, row, batch_);
    } else {
      pad(row);
    }
  }
  ++next_micro_batch_;
  return &batch_;
}

void ValidationSet::pad(int64_t row) {
  const int64_t begin = row * stream_.seq_len(), end = begin + stream_.seq_len();
  std::fill(batch_.inputs.begin() + begin, batch_.inputs.begin() + end, 0);
  std::fill(batch_.targets.begin() + begin, batch_.targets.begin() + end, -1);
  std::fill(batch_.document_start.begin() + begin, batch_.document_start.begin() + end, 0);
}

}  // namespace octavo
