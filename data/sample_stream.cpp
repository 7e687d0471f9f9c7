#include "data/sample_stream.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_input.h"

namespace octavo {
namespace {

// Products of weights (below 2^33) and token counts (below 2^63) need more than 64 bits.
__extension__ typedef __int128 Wide;

constexpr size_t kCachedPermutations = 16;

std::vector<TokenFile> open_files(const std::vector<DatasetSource>& sources, int64_t vocab_size) {
  std::vector<TokenFile> files;
  files.reserve(sources.size());
  for (const DatasetSource& source : sources) {
    files.emplace_back(source.path);
    if (vocab_size > 0) files.back().check_vocabulary(vocab_size);
  }
  return files;
}

StreamOptions options_of(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size) {
  StreamOptions options{.seq_len = config.seq_len,
                        .shuffle = config.shuffle,
                        .lanes = config.lanes,
                        .seed = config.seed,
                        .bos_id = config.bos_id,
                        .eos_id = config.eos_id,
                        .weights = {},
                        .vocab_size = vocab_size};
  for (const DatasetSource& source : sources) options.weights.push_back(source.weight);
  return options;
}

void check_special_token(const char* key, const std::optional<int32_t>& id, int64_t vocab_size) {
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  CHECK_INPUT(!id || (*id >= 0 && *id < limit), "data.{} is {}, expected an id from 0 to {}", key, *id, limit - 1);
}

using Json = nlohmann::json;

// No run counts as far; what lies above must not overflow when it is added to.
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max() / 4;

Json to_json(const std::optional<int32_t>& id) { return id ? Json(*id) : Json(nullptr); }

// The order of reading and what is inserted: a position means something else under any other.
Json order_json(const StreamOptions& options) {
  return {{"lanes", options.lanes},
          {"shuffle", options.shuffle == Shuffle::kLcg ? "lcg" : "none"},
          {"seed", options.seed},
          {"bos_id", to_json(options.bos_id)},
          {"eos_id", to_json(options.eos_id)}};
}

void check_order(const Json& saved, const StreamOptions& options) {
  const Json expected = order_json(options);
  for (const auto& [key, value] : expected.items()) {
    // Without a shuffle the seed changes nothing.
    if (key == "seed" && options.shuffle == Shuffle::kNone) continue;
    CHECK_INPUT(saved.at(key) == value, "the loader state was saved with data.{} {}, but the config has {}", key,
                saved.at(key).dump(), value.dump());
  }
}

}  // namespace

SampleStream::SampleStream(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size)
    : SampleStream(options_of(config, sources, vocab_size), open_files(sources, vocab_size)) {}

SampleStream::SampleStream(StreamOptions options, std::vector<TokenFile> files) : options_(std::move(options)) {
  CHECK_INPUT(options_.seq_len >= 1, "data.seq_len is {}, expected at least 1", options_.seq_len);
  CHECK_INPUT(options_.lanes >= 1, "data.lanes is {}, expected at least 1", options_.lanes);
  CHECK_INPUT(!files.empty(), "no dataset is given, expected at least one in data.train or data.validation");
  check_special_token("bos_id", options_.bos_id, options_.vocab_size);
  check_special_token("eos_id", options_.eos_id, options_.vocab_size);
  if (options_.shuffle == Shuffle::kNone) options_.lanes = 1;
  extra_tokens_ = int64_t{options_.bos_id.has_value()} + int64_t{options_.eos_id.has_value()};

  for (TokenFile& file : files) {
    CHECK_INPUT(file.num_tokens() > 0, "{}: empty dataset: {} documents without a token", file.path(),
                file.num_documents());
    const int64_t epoch_tokens = file.num_tokens() + file.num_documents() * extra_tokens_;
    datasets_.push_back({.file = std::move(file), .weight = 1, .epoch_tokens = epoch_tokens, .cache = {}});
    datasets_.back().cache.resize(kCachedPermutations);
  }
  set_weights();

  state_.cursors.resize(static_cast<size_t>(options_.lanes) * datasets_.size());
  for (size_t i = 0; i < state_.cursors.size(); ++i) {
    state_.cursors[i].position = static_cast<int64_t>(i / datasets_.size());
  }
}

void SampleStream::set_weights() {
  if (options_.weights.empty()) options_.weights.assign(datasets_.size(), 1.0);
  CHECK(options_.weights.size() == datasets_.size(), "{} weights for {} datasets", options_.weights.size(),
        datasets_.size());
  double sum = 0;
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const double weight = options_.weights[d];
    CHECK_INPUT(weight >= 0 && std::isfinite(weight), "{}: has weight {}, expected a number of at least 0",
                datasets_[d].file.path(), weight);
    sum += weight;
  }
  CHECK_INPUT(sum > 0 && std::isfinite(sum), "the weights of the datasets sum to {}, expected more than 0", sum);
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const double share = options_.weights[d] / sum;
    if (share > 0) active_.push_back(static_cast<int64_t>(d));
    // A share too small for 32 bits must not become "never read".
    datasets_[d].weight = share > 0 ? std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(share * 0x1p32))) : 0;
    total_weight_ += datasets_[d].weight;
  }
}

int64_t SampleStream::num_tokens() const {
  int64_t tokens = 0;
  for (const int64_t d : active_) tokens += num_tokens(d);
  return tokens;
}

int64_t SampleStream::choose_dataset(const StreamState::Cursor* cursors) const {
  int64_t consumed = 0;
  for (const int64_t d : active_) {
    if (cursors[d].offset > 0) return d;  // still inside a document
    consumed += cursors[d].consumed;
  }
  int64_t furthest = active_.front();
  Wide largest_lag = 0;
  for (const int64_t d : active_) {
    const Wide lag = static_cast<Wide>(datasets_[static_cast<size_t>(d)].weight) * consumed -
                     static_cast<Wide>(total_weight_) * cursors[d].consumed;
    if (d == active_.front() || lag > largest_lag) {
      furthest = d;
      largest_lag = lag;
    }
  }
  return furthest;
}

int64_t SampleStream::document_at(int64_t dataset, int64_t epoch, int64_t index) {
  if (options_.shuffle == Shuffle::kNone) return index;
  Dataset& source = datasets_[static_cast<size_t>(dataset)];
  auto& slot = source.cache[static_cast<size_t>(epoch) % source.cache.size()];
  if (!slot || slot->epoch != epoch) {
    slot.emplace(Dataset::Cached{epoch, Permutation(static_cast<uint64_t>(source.file.num_documents()), options_.seed,
                                                    static_cast<uint64_t>(dataset), static_cast<uint64_t>(epoch))});
  }
  return static_cast<int64_t>(slot->permutation(static_cast<uint64_t>(index)));
}

SampleStream::Reading SampleStream::current(int64_t lane) {
  StreamState::Cursor* cursors = state_.cursors.data() + lane * num_datasets();
  for (int64_t empty = 1;; ++empty) {
    const int64_t dataset = active_.size() == 1 ? active_.front() : choose_dataset(cursors);
    const TokenFile& source = file(dataset);
    StreamState::Cursor& cursor = cursors[dataset];
    const int64_t epoch = cursor.position / source.num_documents();
    const int64_t document = document_at(dataset, epoch, cursor.position % source.num_documents());
    const int64_t length = source.document_length(document) + extra_tokens_;
    if (length > cursor.offset) return {dataset, document, epoch, length, &cursor};
    CHECK(cursor.offset == 0, "{}: {} tokens of document {} are read, but it has only {}: its index has been changed",
          source.path(), cursor.offset, document, length);
    // Nothing but empty documents: an index that was overwritten with zeros would go on like that for ever.
    if (empty % source.num_documents() == 0) source.check_lengths();
    cursor.position += options_.lanes;
  }
}

void SampleStream::advance(const Reading& reading, int64_t count) const {
  StreamState::Cursor& cursor = *reading.cursor;
  cursor.offset += count;
  if (cursor.offset < reading.length) return;
  cursor.position += options_.lanes;
  cursor.offset = 0;
  cursor.consumed += reading.length;
}

void SampleStream::copy_tokens(const Reading& reading, std::span<int32_t> out) const {
  int64_t offset = reading.cursor->offset;
  if (options_.bos_id) {
    if (offset == 0) {
      out.front() = *options_.bos_id;
      out = out.subspan(1);
    } else {
      --offset;
    }
  }
  const TokenFile& source = file(reading.dataset);
  const int64_t stored = reading.length - extra_tokens_;
  const auto ids = out.first(std::min(out.size(), static_cast<size_t>(stored - std::min(offset, stored))));
  if (!ids.empty()) {
    source.copy(reading.document, offset, ids);
    if (options_.vocab_size > 0) check_tokens(reading, ids);
  }
  if (ids.size() < out.size()) out.back() = *options_.eos_id;
}

void SampleStream::check_tokens(const Reading& reading, std::span<const int32_t> ids) const {
  const int64_t bad = find_outside_vocabulary(ids, options_.vocab_size);
  if (bad < 0) [[likely]]
    return;
  const int64_t stored_offset = std::max<int64_t>(0, reading.cursor->offset - int64_t{options_.bos_id.has_value()});
  throw Error(fmt::format("{}: token id {} at position {} of document {} is outside the vocabulary of {}",
                          file(reading.dataset).path(), ids[static_cast<size_t>(bad)], stored_offset + bad,
                          reading.document, options_.vocab_size));
}

void SampleStream::next(std::span<int32_t> tokens, std::span<int32_t> document_start, Sample* info) {
  const int64_t length = seq_len() + 1;
  CHECK(static_cast<int64_t>(tokens.size()) == length, "a sample has {} tokens, but room for {} was given", length,
        tokens.size());
  CHECK(document_start.empty() || document_start.size() == tokens.size(), "document_start has {} entries, expected {}",
        document_start.size(), length);
  const int64_t lane = state_.next_sample % options_.lanes;
  for (int64_t t = 0; t < length;) {
    const Reading reading = current(lane);
    if (t == 0 && info != nullptr) *info = {state_.next_sample, lane, reading.dataset, reading.epoch};
    const int64_t count = std::min(length - t, reading.length - reading.cursor->offset);
    copy_tokens(reading, tokens.subspan(static_cast<size_t>(t), static_cast<size_t>(count)));
    if (!document_start.empty()) {
      // Only the first document of a sample can have begun before it, and t is 0 there.
      std::fill_n(document_start.begin() + t, count, static_cast<int32_t>(t));
    }
    advance(reading, count);
    t += count;
  }
  ++state_.next_sample;
}

void SampleStream::skip(int64_t count) {
  const int64_t length = seq_len() + 1;
  CHECK_INPUT(count >= 0 && count <= std::numeric_limits<int64_t>::max() / 4 / length,
              "{} samples of {} tokens cannot be skipped", count, length);
  const int64_t each = count / options_.lanes, rest = count % options_.lanes;
  for (int64_t i = 0; i < std::min(count, options_.lanes); ++i) {
    const int64_t lane = (state_.next_sample + i) % options_.lanes;
    skip_tokens(lane, (each + (i < rest ? 1 : 0)) * length);
  }
  state_.next_sample += count;
}

void SampleStream::skip_tokens(int64_t lane, int64_t count) {
  // Every epoch of a lane has the same tokens only when the lane reads all documents and no other dataset intervenes.
  const bool whole_epochs = options_.lanes == 1 && active_.size() == 1;
  while (count > 0) {
    Reading reading = current(lane);
    if (whole_epochs && count > datasets_[static_cast<size_t>(reading.dataset)].epoch_tokens) {
      const int64_t skipped = skip_epochs(reading, count);
      count -= skipped;
      if (skipped > 0) continue;  // the permutation has changed
    }
    const int64_t step = std::min(count, reading.length - reading.cursor->offset);
    advance(reading, step);
    count -= step;
  }
}

// Passes over whole epochs from the beginning of one, leaving at least one of `count` tokens so that the cursor ends
// where reading would have left it. Returns the tokens passed over.
int64_t SampleStream::skip_epochs(const Reading& reading, int64_t count) const {
  StreamState::Cursor& cursor = *reading.cursor;
  const int64_t documents = file(reading.dataset).num_documents();
  if (cursor.offset != 0 || cursor.position % documents != 0) return 0;
  const int64_t epoch_tokens = datasets_[static_cast<size_t>(reading.dataset)].epoch_tokens;
  const int64_t epochs = (count - 1) / epoch_tokens;
  cursor.position += epochs * documents;
  cursor.consumed += epochs * epoch_tokens;
  return epochs * epoch_tokens;
}

Json SampleStream::state_json() const { return state_json(state_); }

Json SampleStream::state_json(const StreamState& state) const {
  Json json = order_json(options_);
  json["next_sample"] = state.next_sample;
  json["datasets"] = Json::array();
  for (const Dataset& dataset : datasets_) {
    json["datasets"].push_back({{"path", dataset.file.path()},
                                {"documents", dataset.file.num_documents()},
                                {"tokens", dataset.file.num_tokens()}});
  }
  // Three flat arrays [lanes, datasets] rather than an object a cursor, to keep manifests small.
  Json position = Json::array(), offset = Json::array(), consumed = Json::array();
  for (const StreamState::Cursor& cursor : state.cursors) {
    position.push_back(cursor.position);
    offset.push_back(cursor.offset);
    consumed.push_back(cursor.consumed);
  }
  json["position"] = std::move(position);
  json["offset"] = std::move(offset);
  json["consumed"] = std::move(consumed);
  return json;
}

void SampleStream::restore(const Json& json) {
  StreamState state;
  try {
    state = parse_state(json);
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("the loader state is malformed: {}", reason_of(error)));
  }
  check_cursors(state);
  state_ = std::move(state);
}

StreamState SampleStream::parse_state(const Json& json) const {
  check_order(json, options_);
  const Json& saved = json.at("datasets");
  CHECK_INPUT(saved.size() == datasets_.size(), "the loader state is of {} datasets, but the config has {}",
              saved.size(), datasets_.size());
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const TokenFile& source = datasets_[d].file;
    const auto documents = integer_at(saved.at(d), "documents", "the loader state");
    const auto tokens = integer_at(saved.at(d), "tokens", "the loader state");
    CHECK_INPUT(documents == source.num_documents() && tokens == source.num_tokens(),
                "{}: has {} documents and {} tokens, but the loader state is of a dataset with {} and {}",
                source.path(), source.num_documents(), source.num_tokens(), documents, tokens);
  }

  StreamState state;
  state.next_sample = integer_at(json, "next_sample", "the loader state", 0, kMaxCount);
  const size_t count = state_.cursors.size();
  for (const char* key : {"position", "offset", "consumed"}) {
    CHECK_INPUT(json.at(key).size() == count, "the loader state has {} entries in '{}', expected {}",
                json.at(key).size(), key, count);
  }
  for (size_t i = 0; i < count; ++i) {
    state.cursors.push_back(
        {.position = as_integer(json.at("position").at(i), "position of the loader state", 0, kMaxCount),
         .offset = as_integer(json.at("offset").at(i), "offset of the loader state", 0, kMaxCount),
         .consumed = as_integer(json.at("consumed").at(i), "consumed of the loader state", 0, kMaxCount)});
  }
  return state;
}

void SampleStream::check_cursors(const StreamState& state) {
  const int64_t datasets = num_datasets();
  for (int64_t lane = 0; lane < options_.lanes; ++lane) {
    int64_t open_documents = 0;
    for (int64_t d = 0; d < datasets; ++d) {
      const StreamState::Cursor& cursor = state.cursors[static_cast<size_t>(lane * datasets + d)];
      CHECK_INPUT(cursor.position >= 0 && cursor.position % options_.lanes == lane && cursor.offset >= 0 &&
                      cursor.consumed >= 0,
                  "the loader state has position {}, offset {} and consumed {} in lane {}, which no run can reach",
                  cursor.position, cursor.offset, cursor.consumed, lane);
      if (cursor.offset == 0) continue;
      ++open_documents;
      const int64_t documents = file(d).num_documents();
      const int64_t document = document_at(d, cursor.position / documents, cursor.position % documents);
      const int64_t length = file(d).document_length(document) + extra_tokens_;
      CHECK_INPUT(cursor.offset < length, "{}: the loader state is at token {} of document {}, which has {}",
                  file(d).path(), cursor.offset, document, length);
    }
    CHECK_INPUT(open_documents <= 1, "the loader state is inside {} documents at once in lane {}, expected at most one",
                open_documents, lane);
  }
}

}  // namespace octavo
