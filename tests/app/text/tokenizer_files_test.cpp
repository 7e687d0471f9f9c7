#include "app/text/tokenizer_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "data/tokenizer_identity.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

constexpr const char* kAddedTokens = R"({"added_tokens": [{"id": 0, "content": "<s>", "special": true},
                                                     {"id": 7, "content": "</s>", "special": true}PAD],
                                    "model": {"vocab": {"a": 1, "b": 2, "padding": 3}}})";

std::string with_padding(const std::string& token) {
  std::string text = kAddedTokens;
  return text.replace(text.find("PAD"), 3, token);
}

Json config_of(const std::string& tokenizer, const Json& bos, const Json& eos) {
  const auto file = make_tokenizer_config({"tokenizer.json", tokenizer}, bos, eos);
  return file ? Json::parse(file->content) : Json();
}

TEST(TokenizerConfig, NamesBosEosAndPad) {
  const Json own = config_of(with_padding(R"(, {"id": 9, "content": "<|right_PAD_id|>", "special": true})"), 0, 7);
  EXPECT_EQ(own["bos_token"], "<s>");
  EXPECT_EQ(own["eos_token"], "</s>");
  EXPECT_EQ(own["pad_token"], "<|right_PAD_id|>");
  EXPECT_EQ(own["tokenizer_class"], "PreTrainedTokenizerFast");
  const Json without = config_of(with_padding(""), 0, {7, 1});
  EXPECT_EQ(without["pad_token"], "</s>");
  EXPECT_EQ(config_of(with_padding(""), 1, 2)["bos_token"], "a") << "a token of the vocabulary";
}

TEST(TokenizerConfig, LeavesOutWhatThereIsNot) {
  const Json config = config_of(with_padding(""), nullptr, 99);
  for (const char* key : {"bos_token", "eos_token", "pad_token"}) EXPECT_FALSE(config.contains(key)) << key;
  EXPECT_TRUE(config.contains("tokenizer_class"));
  EXPECT_TRUE(config_of(R"({"model": {"vocab": [["a", 0.5]]}})", 0, 1).contains("tokenizer_class"));
}

TEST(TokenizerConfig, IsNullForInvalidTokenizers) {
  for (const char* text : {"", "{}", "[]", "5", R"({"model": 1})", R"({"added_tokens": 1, "model": {}})",
                           R"({"added_tokens": [{"id": 1}], "model": {}})",
                           R"({"added_tokens": [{"id": 1, "content": 2}], "model": {}})"}) {
    EXPECT_TRUE(config_of(text, 0, 1).is_null()) << text;
  }
}

// The identity in data/tokenizer_identity.h is that of the files that an export writes.
TEST(ByteTokenizerFiles, HaveTheFixedIdentity) {
  const AttachedFile file = byte_tokenizer_files().front();
  EXPECT_EQ(tokenizer_hash(file.content, file.name), kByteTokenizerHash);
  EXPECT_TRUE(is_byte_tokenizer(file));
  EXPECT_FALSE(is_byte_tokenizer({"tokenizer.json", "{}"}));
}

}  // namespace
}  // namespace octavo
