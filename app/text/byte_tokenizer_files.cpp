#include "app/text/byte_tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "app/text/tokenizer.h"
#include "app/text/tokenizer_config.h"
#include "core/error.h"
#include "data/tokenizer_identity.h"
#include "data/tokens/byte_tokenizer.h"

namespace octavo {

namespace {

using Json = nlohmann::ordered_json;

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
Json byte_names() {
  Json ids = Json::object();
  int next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    ids[utf8(printable ? byte : next++)] = byte;
  }
  return ids;
}

Json special_token(int32_t id, const char* name) {
  return {{"id", id},        {"content", name},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
}

}  // namespace

std::vector<CarriedFile> byte_tokenizer_files() {
  const Json special = {special_token(ByteTokenizer::kBos, kBosName), special_token(ByteTokenizer::kEos, kEosName),
                        special_token(ByteTokenizer::kPad, kPadName)};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", byte_names()},
                      {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},          {"truncation", nullptr},   {"padding", nullptr},
                          {"added_tokens", special},   {"normalizer", nullptr},   {"pre_tokenizer", byte_level()},
                          {"post_processor", nullptr}, {"decoder", byte_level()}, {"model", model}};
  const CarriedFile file = {kTokenizerName, tokenizer.dump(2) + "\n"};
  return {file, make_tokenizer_config(file, ByteTokenizer::kBos, ByteTokenizer::kEos).value()};
}

bool is_byte_tokenizer(const CarriedFile& tokenizer) {
  try {
    return tokenizer_hash(tokenizer.content, tokenizer.name) == kByteTokenizerHash;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace octavo
