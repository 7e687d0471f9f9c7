// Saving and restoring a SampleStream.
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "data/sample_stream.h"
#include "core/error.h"
#include "core/json_input.h"

namespace octavo {
namespace {

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
