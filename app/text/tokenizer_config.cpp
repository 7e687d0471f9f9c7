#include "app/text/tokenizer_config.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files/json_input.h"

namespace octavo {

namespace {

struct NamedToken {
  nlohmann::json id;
  std::string name;
  bool is_special = false;
};

// Returns the added tokens, followed by the vocabulary if it is an object, as it is for BPE.
std::vector<NamedToken> named_tokens(const nlohmann::json& tokenizer) {
  std::vector<NamedToken> tokens;
  for (const nlohmann::json& token : tokenizer.value("added_tokens", nlohmann::json::array())) {
    tokens.push_back({token.at("id"), token.at("content"), token.value("special", false)});
  }
  const nlohmann::json vocabulary = tokenizer.at("model").value("vocab", nlohmann::json());
  if (vocabulary.is_object()) {
    for (const auto& [name, id] : vocabulary.items()) tokens.push_back({id, name});
  }
  return tokens;
}

// Returns the name of the token with the id, or null if there is none.
nlohmann::json name_of(const std::vector<NamedToken>& tokens, const nlohmann::json& ids) {
  const nlohmann::json id = ids.is_array() && !ids.empty() ? ids.front() : ids;
  const auto found =
      std::find_if(tokens.begin(), tokens.end(), [&](const NamedToken& token) { return token.id == id; });
  return found == tokens.end() ? nlohmann::json() : nlohmann::json(found->name);
}

bool is_padding(const NamedToken& token) {
  std::string name = token.name;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return token.is_special && name.find("pad") != std::string::npos;
}

nlohmann::json padding_of(const std::vector<NamedToken>& tokens, const nlohmann::json& eos) {
  const auto found = std::find_if(tokens.begin(), tokens.end(), is_padding);
  return found == tokens.end() ? eos : nlohmann::json(found->name);
}

}  // namespace

std::optional<CarriedFile> make_tokenizer_config(const CarriedFile& tokenizer, const nlohmann::json& bos_id,
                                                 const nlohmann::json& eos_id) {
  std::vector<NamedToken> tokens;
  try {
    tokens = named_tokens(parse_json(tokenizer.content, tokenizer.name));
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  const nlohmann::json eos = name_of(tokens, eos_id);
  const std::pair<const char*, nlohmann::json> names[] = {
      {"bos_token", name_of(tokens, bos_id)}, {"eos_token", eos}, {"pad_token", padding_of(tokens, eos)}};
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const auto& [key, name] : names) {
    if (!name.is_null()) config[key] = name;
  }
  config["clean_up_tokenization_spaces"] = false;
  return CarriedFile{kTokenizerConfigName, config.dump(2) + "\n"};
}

}  // namespace octavo
