#include "data/sample_stream.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/files/json_input.h"
#include "data/sidecar.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

// Upper limit of the counts in a saved state. No run reaches it, and sums of larger counts could overflow.
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max() / 4;
constexpr const char* kWhere = "the loader state";

void check_special_token(const char* key, const std::optional<int32_t>& id, int64_t vocab_size) {
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  CHECK_INPUT(!id || (*id >= 0 && *id < limit), "data.{} is {}, expected an id from 0 to {}", key, *id, limit - 1);
}

void check_options(const DataConfig& config, const std::vector<DatasetSource>& sources) {
  CHECK_INPUT(config.seq_len >= 1, "data.seq_len is {}, expected at least 1", config.seq_len);
  CHECK_INPUT(!sources.empty(), "no dataset is given, expected at least one in data.train or data.validation");
  CHECK(!config.bos_auto && !config.eos_auto,
        "data.bos_id or data.eos_id is still auto, expected a call of find_document_tokens()");
}

std::vector<int64_t> weights_of(const std::vector<DatasetSource>& sources) {
  std::vector<double> weights;
  for (const DatasetSource& source : sources) {
    CHECK_INPUT(source.weight >= 0 && std::isfinite(source.weight),
                "{}: has weight {}, expected a number of at least 0", source.paths.front(), source.weight);
    weights.push_back(source.weight);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  CHECK_INPUT(sum > 0 && std::isfinite(sum), "the weights of the datasets sum to {}, expected more than 0", sum);
  return integer_weights(weights);
}

// Adds a sentence for each token that the documents of a dataset contain already.
void add_stored_notes(const std::string& name, const TokenStream& stream, const DataConfig& config,
                      std::vector<std::string>& notes) {
  const auto add = [&](int64_t files, const std::optional<int32_t>& id, const char* token) {
    if (files == 0) return;
    const std::string which =
        files == stream.num_files() ? "" : fmt::format(" in {} of {} files", files, stream.num_files());
    notes.push_back(
        fmt::format("the documents of {} have the {} {}{} already, so none is inserted", name, token, *id, which));
  };
  add(stream.files_with_bos(), config.bos_id, "bos");
  add(stream.files_with_eos(), config.eos_id, "eos");
}

Json to_json(const std::optional<int32_t>& id) { return id ? Json(*id) : Json(nullptr); }

// Returns everything that decides which tokens a sample has. With other settings the saved numbers of windows would
// refer to other tokens.
Json order_json(const DataConfig& config) {
  return {{"seq_len", config.seq_len},
          {"shuffle", config.shuffle == Shuffle::kLcg ? "lcg" : "none"},
          {"seed", config.seed},
          {"bos_id", to_json(config.bos_id)},
          {"eos_id", to_json(config.eos_id)}};
}

constexpr const char* kNextSample = "next_sample";
constexpr const char* kDatasets = "datasets";
constexpr const char* kModified = "modified_ns";

constexpr size_t kNamedFiles = 3;  // Maximum number of files that a message names.

}  // namespace

void check_stream_state(const Json& state) {
  integer_at(state, kNextSample, kWhere, 0, kMaxCount);
  const Json order = order_json({});
  for (const auto& [key, value] : order.items()) {
    const Json& saved = state.value(key, Json::object());
    CHECK_INPUT(!saved.is_structured() && saved.is_string() == value.is_string(), "{}: its {} is missing or malformed",
                kWhere, key);
  }
  CHECK_INPUT(state.contains(kDatasets) && state.at(kDatasets).is_array(), "{}: has no list of {}", kWhere, kDatasets);
  for (const Json& dataset : state.at(kDatasets)) {
    for (const char* key : {"tokens", "weight", "windows"}) integer_at(dataset, key, kWhere);
    if (dataset.contains(kModified)) integer_at(dataset, kModified, kWhere);
  }
}

SampleStream::SampleStream(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size)
    : config_(config),
      seq_len_((check_options(config, sources), config.seq_len)),
      weights_(weights_of(sources)),
      mixture_(weights_) {
  config_.train.clear();
  config_.validation.clear();
  const std::vector<std::string> names = dataset_names(sources);
  const std::vector<DatasetOrigin>& origins = config.origin.datasets;
  CHECK(origins.empty() || origins.size() == sources.size(), "there are {} datasets, but the origin of the data has {}",
        sources.size(), origins.size());
  SidecarCheck sidecars(config, vocab_size);
  for (size_t d = 0; d < sources.size(); ++d) {
    const DatasetOrigin origin =
        origins.empty() ? DatasetOrigin{.id = static_cast<int64_t>(d), .windows = 0} : origins[d];
    std::vector<std::string> repeated;
    const std::vector<std::string> files = token_files_of(sources[d], &repeated);
    for (const std::string& file : files) {
      if (vocab_size > 0) sidecars.check(file);
    }
    check_special_token("bos_id", config.bos_id, vocab_size);
    check_special_token("eos_id", config.eos_id, vocab_size);
    TokenStream stream(files, {config.bos_id, config.eos_id}, vocab_size);
    CHECK_INPUT(!config.document_mask || !stream.is_undivided(),
                "{}: has no token that divides its documents, which data.document_mask needs; set data.eos_id or "
                "data.bos_id to the token between them, or data.document_mask to false",
                stream.path(0));
    const WindowOrder order({.num_tokens = stream.num_tokens(),
                             .seq_len = seq_len_,
                             .shuffle = config.shuffle,
                             .seed = config.seed,
                             .dataset = origin.id});
    if (!repeated.empty()) {
      notes_.push_back(fmt::format("{} has {} token files under several names, such as {}, which are read once",
                                   names[d], repeated.size(), repeated.front()));
    }
    add_stored_notes(names[d], stream, config, notes_);
    datasets_.push_back(
        {names[d], fingerprint_of(files), sampled_files(files), std::move(stream), order, origin.windows});
  }
  const std::vector<std::string> overrides = sidecars.overrides();
  notes_.insert(notes_.end(), overrides.begin(), overrides.end());
}

int64_t SampleStream::num_tokens() const {
  int64_t tokens = 0;
  for (size_t d = 0; d < datasets_.size(); ++d) tokens += weights_[d] > 0 ? datasets_[d].stream.num_tokens() : 0;
  return tokens;
}

double SampleStream::epochs(int64_t dataset, int64_t windows) const {
  return static_cast<double>(windows) * static_cast<double>(seq_len_ + 1) / static_cast<double>(num_tokens(dataset));
}

int64_t SampleStream::expected_windows(int64_t dataset, int64_t samples) const {
  const int64_t total = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
  const double share = static_cast<double>(weights_[static_cast<size_t>(dataset)]) / static_cast<double>(total);
  return at(dataset).windows_before + std::llround(share * static_cast<double>(samples - config_.origin.sample));
}

Sample SampleStream::next() {
  const int64_t index = next_sample();
  const int64_t dataset = mixture_.next();
  // Number of windows taken from the dataset before this one.
  const int64_t read = taken(dataset) - 1;
  return {index, dataset, datasets_[static_cast<size_t>(dataset)].order.at(read)};
}

void SampleStream::seek(int64_t g) {
  const int64_t first = config_.origin.sample;
  CHECK_INPUT(g >= first && g <= kMaxCount, "sample {}, expected {} to {}", g, first, kMaxCount);
  mixture_.seek(g - first);
}

void SampleStream::read(const Sample& sample, std::span<int32_t> tokens, std::span<int32_t> document_start) const {
  CHECK(static_cast<int64_t>(tokens.size()) == seq_len_ + 1, "a sample has {} tokens, but the buffer has {} elements",
        seq_len_ + 1, tokens.size());
  at(sample.dataset).stream.read(sample.window.begin, tokens, document_start);
}

StreamState SampleStream::state() const {
  StreamState state{.next_sample = next_sample(), .windows = {}};
  for (int64_t d = 0; d < num_datasets(); ++d) state.windows.push_back(taken(d));
  return state;
}

Json SampleStream::state_json(const StreamState& state) const {
  Json json = order_json(config_);
  json[kNextSample] = state.next_sample;
  json[kDatasets] = Json::array();
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const Dataset& dataset = datasets_[d];
    json[kDatasets].push_back({{"name", dataset.name},
                               {"path", dataset.stream.path(0)},
                               {"files", dataset.stream.num_files()},
                               {"tokens", dataset.stream.num_tokens()},
                               {"fingerprint", dataset.fingerprint},
                               {"weight", weights_[d]},
                               {"windows", state.windows[d]}});
    const auto newest = std::ranges::max_element(dataset.sampled, {}, &SampledFile::modified_ns);
    if (newest != dataset.sampled.end()) json[kDatasets].back()[kModified] = newest->modified_ns;
  }
  return json;
}

void SampleStream::restore(const Json& json) {
  check_stream_state(json);
  check_belongs(json);
  const int64_t sample = integer_at(json, kNextSample, kWhere);
  seek(sample);
  for (int64_t d = 0; d < num_datasets(); ++d) {
    const int64_t saved = integer_at(json.at(kDatasets).at(static_cast<size_t>(d)), "windows", kWhere);
    CHECK_AS(OtherData, saved == taken(d),
             "the loader state has {} windows of dataset {} after {} samples, but the weights give {}", saved, name(d),
             sample, taken(d));
  }
}

void SampleStream::check_belongs(const Json& json) const {
  const Json expected = order_json(config_);
  for (const auto& [key, value] : expected.items()) {
    // Without a shuffle the seed changes nothing.
    if (key == "seed" && config_.shuffle == Shuffle::kNone) continue;
    CHECK_AS(OtherData, json.at(key) == value, "the loader state was saved with data.{} {}, but the config has {}", key,
             json.at(key).dump(), value.dump());
  }
  const Json& saved = json.at(kDatasets);
  CHECK_AS(OtherData, saved.size() == datasets_.size(), "the loader state has {} datasets, but the config has {}",
           saved.size(), datasets_.size());
  for (size_t d = 0; d < datasets_.size(); ++d) check_dataset(d, saved.at(d), json.at(kNextSample));
}

void SampleStream::check_dataset(size_t dataset, const Json& saved, const Json& next_sample) const {
  const auto& [name, fingerprint, sampled, stream, order, windows_before] = datasets_[dataset];
  const auto tokens = integer_at(saved, "tokens", kWhere);
  CHECK_AS(OtherData, tokens == stream.num_tokens(), "{}: has {} tokens, but the loader state was saved with {}",
           stream.path(0), stream.num_tokens(), tokens);
  const auto saved_weight = integer_at(saved, "weight", kWhere);
  CHECK_AS(OtherData, saved_weight == weights_[dataset],
           "{}: has the integer weight {}, but the loader state was saved with {}; expected the same "
           "weights",
           stream.path(0), weights_[dataset], saved_weight);
  const Json saved_fingerprint = saved.value("fingerprint", Json());
  CHECK_AS(OtherData, saved_fingerprint == fingerprint,
           "{}: dataset {} has the fingerprint {}, but the loader state was saved with the "
           "fingerprint {}, so the text differs; set data.resume_from_sample to {} to continue with this text",
           stream.path(0), name, fingerprint, saved_fingerprint.dump(), next_sample.dump());
}

std::vector<std::string> SampleStream::modified_since(const Json& json) const {
  std::vector<std::string> sentences;
  const Json& saved = json.at(kDatasets);
  for (size_t d = 0; d < std::min(datasets_.size(), saved.size()); ++d) {
    const Dataset& dataset = datasets_[d];
    if (saved[d].value("fingerprint", Json()) != dataset.fingerprint || !saved[d].contains(kModified)) continue;
    const int64_t newest = integer_at(saved[d], kModified, kWhere);
    std::vector<std::string> newer;
    for (const auto& [path, modified_ns] : dataset.sampled) {
      if (modified_ns > newest) newer.push_back(path);
    }
    if (newer.empty()) continue;
    const std::span<const std::string> named(newer.data(), std::min(newer.size(), kNamedFiles));
    sentences.push_back(
        fmt::format("dataset {}: {} of {} token files were modified after those of the checkpoint: {}{}; only samples "
                    "of their text were compared, so the run may continue with other text",
                    dataset.name, newer.size(), dataset.sampled.size(), fmt::join(named, ", "),
                    newer.size() > kNamedFiles ? ", ..." : ""));
  }
  return sentences;
}

}  // namespace octavo
