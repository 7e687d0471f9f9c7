#include "data/validation_set.h"

#include "core/error.h"

namespace octavo {

ValidationSet::ValidationSet(const DataConfig& config, const ValidationOptions& options)
    : options_(options), scratch_(config.seq_len) {
  CHECK_INPUT(!config.validation.empty(), "data.validation names no dataset, expected at least one");
  CHECK_INPUT(options.batches >= 1, "validation.batches is {}, expected at least 1", options.batches);
  CHECK(options.global_batch_size >= 1 && options.micro_batch_size >= 1,
        "the validation batch has {} samples and micro-batches of {}, expected at least 1", options.global_batch_size,
        options.micro_batch_size);
  CHECK(options.num_ranks >= 1 && options.rank >= 0 && options.rank < options.num_ranks,
        "the rank of the validation set is {}, expected one of {} ranks", options.rank, options.num_ranks);
  // The seed is independent of data.seed, so that runs can be compared.
  constexpr uint64_t kSeed = 0;
  DataConfig spread = config;
  spread.shuffle = Shuffle::kLcg;
  spread.seed = kSeed;
  spread.origin = {};
  const std::vector<std::string> names = dataset_names(config.validation);
  for (size_t i = 0; i < config.validation.size(); ++i) {
    const DatasetSource& source = config.validation[i];
    if (source.weight == 0) continue;
    const SampleStream& stream = streams_.emplace_back(spread, std::vector{source}, options.vocab_size);
    check_windows(stream, {&source, 1});
    // The division avoids a multiplication that could overflow.
    const int64_t windows = stream.num_windows(0);
    const bool all = options.batches > windows / options.global_batch_size;
    datasets_.push_back({names[i], source.weight, all ? windows : options.batches * options.global_batch_size});
  }
  CHECK_INPUT(!datasets_.empty(), "the weights of data.validation are all 0, expected one above 0");
  resize(batch_, options.micro_batch_size, options.context.share(config.seq_len));
}

const Batch* ValidationSet::next(size_t dataset) {
  const int64_t samples = datasets_[dataset].num_samples;
  if (next_micro_batch_ * options_.num_ranks * options_.micro_batch_size >= samples) {
    next_micro_batch_ = 0;
    return nullptr;
  }
  SampleStream& stream = streams_[dataset];
  batch_.step = next_micro_batch_;
  const int64_t first = (next_micro_batch_ * options_.num_ranks + options_.rank) * options_.micro_batch_size;
  for (int64_t row = 0; row < options_.micro_batch_size; ++row) {
    if (first + row >= samples) {
      pad_row(batch_, row, options_.context.share(stream.seq_len()));
      continue;
    }
    stream.seek(first + row);
    read_sample(stream, stream.next(), row, options_.context, scratch_, batch_);
  }
  ++next_micro_batch_;
  return &batch_;
}

}  // namespace octavo
