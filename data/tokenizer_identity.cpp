#include "data/tokenizer_identity.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files/json_input.h"
#include "core/files/sha256.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "scores are hashed as they are in memory");

class FieldHash {
 public:
  void add(std::string_view field) {
    hash_.add(std::to_string(field.size()) + ":");
    hash_.add(field);
  }
  void add(int64_t number) { add(std::to_string(number)); }
  std::string hex() { return hash_.hex(); }

 private:
  Sha256 hash_;
};

// Returns json[key], or null if it is missing.
const Json& member(const Json& json, const char* key) {
  static const Json kNull;
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

void add_vocabulary(const Json& vocabulary, FieldHash& hash) {
  if (vocabulary.is_array()) {
    for (size_t id = 0; id < vocabulary.size(); ++id) {
      const double score = vocabulary[id].at(1).get<double>();
      hash.add("token");
      hash.add(static_cast<int64_t>(id));
      hash.add(vocabulary[id].at(0).get_ref<const std::string&>());
      hash.add({reinterpret_cast<const char*>(&score), sizeof(score)});
    }
    return;
  }
  std::vector<std::pair<int64_t, std::string_view>> tokens;
  for (const auto& [token, id] : vocabulary.items()) tokens.emplace_back(as_integer(id, "an id"), token);
  std::sort(tokens.begin(), tokens.end());
  for (const auto& [id, token] : tokens) {
    hash.add("token");
    hash.add(id);
    hash.add(token);
  }
}

void add_merges(const Json& merges, FieldHash& hash) {
  for (const Json& merge : merges) {
    hash.add("merge");
    if (!merge.is_string()) {
      CHECK_INPUT(merge.is_array() && merge.size() == 2, "a merge is {}, expected two tokens", merge.dump());
      for (const Json& token : merge) hash.add(token.get_ref<const std::string&>());
      continue;
    }
    const std::string_view both = merge.get_ref<const std::string&>();
    const size_t space = both.find(' ');
    CHECK_INPUT(space != std::string_view::npos, "a merge is '{}', expected two tokens", both);
    hash.add(both.substr(0, space));
    hash.add(both.substr(space + 1));
  }
}

void add_added_tokens(const Json& added, FieldHash& hash) {
  std::vector<std::tuple<int64_t, std::string, bool>> tokens;
  for (const Json& token : added) {
    tokens.emplace_back(integer_at(token, "id", "an added token"), token.at("content").get<std::string>(),
                        token.value("special", false));
  }
  std::sort(tokens.begin(), tokens.end());
  for (const auto& [id, content, special] : tokens) {
    hash.add("added");
    hash.add(id);
    hash.add(content);
    hash.add(special ? 1 : 0);
  }
}

}  // namespace

std::string tokenizer_hash(std::string_view content, const std::string& path) {
  try {
    const Json tokenizer = parse_json(content, "the content");
    CHECK_INPUT(tokenizer.is_object() && member(tokenizer, "model").is_object(), "it has no model");
    const Json& model = tokenizer.at("model");
    FieldHash hash;
    const Json& type = member(model, "type");
    hash.add(type.is_null() ? std::string() : type.get<std::string>());
    add_vocabulary(member(model, "vocab"), hash);
    add_merges(member(model, "merges"), hash);
    add_added_tokens(member(tokenizer, "added_tokens"), hash);
    return hash.hex();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: is not a Hugging Face tokenizer.json: {}", path, error.what()));
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is not a Hugging Face tokenizer.json: {}", path, reason_of(error)));
  }
}

}  // namespace octavo
