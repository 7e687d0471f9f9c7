#include "data/tokenizer_identity.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/files/json_input.h"
#include "tests/core/messages.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

Json cases() { return read_json_file(std::string(OCTAVO_SOURCE_DIR) + "/tests/data/tokenizer_hashes.json"); }
std::string hash_of(const Json& tokenizer) { return tokenizer_hash(tokenizer.dump(), "t"); }

// tests/scripts/tokenizer_files_test.py compares the hashes of scripts/ with the same values. The long types let the
// hashed bytes end on each side of the places where SHA-256 needs another block.
TEST(TokenizerIdentity, EqualsTheFixedValues) {
  ASSERT_EQ(cases().size(), 8);
  for (const Json& fixed : cases()) EXPECT_EQ(hash_of(fixed["tokenizer"]), fixed["hash"].get<std::string>());
}

TEST(TokenizerIdentity, DependsOnWhatDecidesTheIdsOnly) {
  const Json tokenizer = cases()[0]["tokenizer"];
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = tokenizer;
    changed[Json::json_pointer(pointer)] = value;
    return hash_of(changed);
  };
  std::set<std::string> hashes = {hash_of(tokenizer)};
  const std::pair<const char*, Json> differences[] = {
      {"/model/vocab/a", 7},
      {"/model/vocab/c", 7},
      {"/model/type", "WordPiece"},
      {"/model/merges", Json::array({"\u0120 \u00e9", "a b"})},
      {"/model/merges", Json::array({"a b"})},
      {"/added_tokens/0/content", "<|END|>"},
      {"/added_tokens/0/id", 8},
      {"/added_tokens/0/special", false},
      {"/added_tokens", Json::array()},
  };
  for (const auto& [pointer, value] : differences) {
    EXPECT_TRUE(hashes.insert(with(pointer, value)).second) << pointer << " " << value;
  }
  const std::pair<const char*, Json> equal[] = {
      {"/model/merges", Json::array({Json::array({"a", "b"}), Json::array({"\u0120", "\u00e9"})})},
      {"/truncation", {{"max_length", 8}}},
      {"/added_tokens/0/lstrip", true},
      {"/version", "2.0"},
  };
  for (const auto& [pointer, value] : equal) EXPECT_EQ(with(pointer, value), hash_of(tokenizer)) << pointer;
}

TEST(TokenizerIdentity, IsThatOfATokenizerOnly) {
  for (const char* content :
       {"", "5", "{}", R"({"model": []})", R"({"model": {"vocab": {"a": -1}}})", R"({"model": {"vocab": {"a": 1.5}}})",
        R"({"model": {"vocab": [["a"]]}})", R"({"model": {"vocab": [[5, 0.5]]}})", R"({"model": {"merges": ["ab"]}})",
        R"({"model": {"merges": [["a", "b", "c"]]}})", R"({"model": {"merges": [5]}})", R"({"model": {"type": 5}})",
        R"({"model": {}, "added_tokens": [{"id": 1}]})", R"({"model": {}, "added_tokens": [5]})"}) {
    const std::string refusal = message_of<InputError>([&] { tokenizer_hash(content, "t.json"); });
    EXPECT_TRUE(refusal.starts_with("t.json: is not a Hugging Face tokenizer.json: ")) << content;
  }
}

}  // namespace
}  // namespace octavo
