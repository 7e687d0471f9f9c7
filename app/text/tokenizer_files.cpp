#include "app/text/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "app/inputs/tokenizer_source.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "core/format.h"
#include "data/tokenizer_identity.h"
#include "data/tokens/byte_tokenizer.h"

namespace octavo {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct NamedToken {
  Json id;
  std::string name;
  bool is_special = false;
};

// Returns the added tokens, followed by the vocabulary if it is an object, as it is for BPE.
std::vector<NamedToken> named_tokens(const Json& tokenizer) {
  std::vector<NamedToken> tokens;
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    tokens.push_back({token.at("id"), token.at("content"), token.value("special", false)});
  }
  const Json vocabulary = tokenizer.at("model").value("vocab", Json());
  if (vocabulary.is_object()) {
    for (const auto& [name, id] : vocabulary.items()) tokens.push_back({id, name});
  }
  return tokens;
}

// Returns the name of the token with the id, or null if there is none.
Json name_of(const std::vector<NamedToken>& tokens, const Json& ids) {
  const Json id = ids.is_array() && !ids.empty() ? ids.front() : ids;
  const auto found = std::ranges::find(tokens, id, &NamedToken::id);
  return found == tokens.end() ? Json() : Json(found->name);
}

bool is_padding(const NamedToken& token) {
  return token.is_special && lower_case(token.name).find("pad") != std::string::npos;
}

Json padding_of(const std::vector<NamedToken>& tokens, const Json& eos) {
  const auto found = std::ranges::find_if(tokens, is_padding);
  return found == tokens.end() ? eos : Json(found->name);
}

constexpr const char* kBosName = "<|bos|>";
constexpr const char* kEosName = "<|eos|>";
constexpr const char* kPadName = "<|pad|>";

// Encodes a code point below U+0800 in UTF-8.
std::string utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Returns the names of the bytes as bytes_to_unicode() in GPT-2's encoder.py does: printable characters of Latin-1 are
// their own names, and the other bytes are named by the code points from U+0100 on.
OrderedJson byte_names() {
  OrderedJson ids = OrderedJson::object();
  int next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    ids[utf8(printable ? byte : next++)] = byte;
  }
  return ids;
}

OrderedJson special_token(int32_t id, const char* name) {
  return {{"id", id},        {"content", name},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

OrderedJson byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
}

}  // namespace

std::optional<AttachedFile> make_tokenizer_config(const AttachedFile& tokenizer, const Json& bos_id,
                                                  const Json& eos_id) {
  std::vector<NamedToken> tokens;
  try {
    tokens = named_tokens(parse_json(tokenizer.content, tokenizer.name));
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  const Json eos = name_of(tokens, eos_id);
  const std::pair<const char*, Json> names[] = {
      {"bos_token", name_of(tokens, bos_id)}, {"eos_token", eos}, {"pad_token", padding_of(tokens, eos)}};
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const auto& [key, name] : names) {
    if (!name.is_null()) config[key] = name;
  }
  config["clean_up_tokenization_spaces"] = false;
  return AttachedFile{kTokenizerConfigName, config.dump(2) + "\n"};
}

std::vector<AttachedFile> byte_tokenizer_files() {
  const OrderedJson special = {special_token(ByteTokenizer::kBos, kBosName),
                               special_token(ByteTokenizer::kEos, kEosName),
                               special_token(ByteTokenizer::kPad, kPadName)};
  const OrderedJson model = {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"vocab", byte_names()},
                             {"merges", OrderedJson::array()}};
  const OrderedJson tokenizer = {
      {"version", "1.0"},          {"truncation", nullptr},   {"padding", nullptr},
      {"added_tokens", special},   {"normalizer", nullptr},   {"pre_tokenizer", byte_level()},
      {"post_processor", nullptr}, {"decoder", byte_level()}, {"model", model}};
  const AttachedFile file = {kTokenizerName, tokenizer.dump(2) + "\n"};
  return {file, make_tokenizer_config(file, ByteTokenizer::kBos, ByteTokenizer::kEos).value()};
}

bool is_byte_tokenizer(const AttachedFile& tokenizer) {
  try {
    return tokenizer_hash(tokenizer.content, tokenizer.name) == kByteTokenizerHash;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace octavo
