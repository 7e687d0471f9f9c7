#include "app/inputs/tokenizer_source.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/input_file.h"
#include "data/tokenizer_identity.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

std::string chosen(const TokenizerFacts& facts) {
  const TokenizerChoice choice = choose_tokenizer(facts);
  if (!choice.error.empty()) return "error";
  return choice.tokenizer.name + " " + choice.tokenizer.hash + (choice.note.empty() ? "" : " noted");
}

TEST(TokenizerChoice, IsTheGivenOneUnlessAnotherWasTrainedWith) {
  const ModelTokenizer one{"one.json", "1"}, two{"two.json", "2"}, unknown{"old.json", ""}, none{"none", ""};
  struct Case {
    TokenizerFacts facts;
    std::string expected;
  };
  const std::string byte = std::string("byte ") + kByteTokenizerHash;
  const Case cases[] = {
      {{.given = "auto"}, byte},
      {{.given = "auto", .data_may_be_bytes = false}, "none  noted"},
      {{.given = "auto", .resumed = one}, "one.json 1"},
      {{.given = "auto", .initial = one}, "one.json 1"},
      {{.given = "auto", .initial = none}, "none "},
      {{.given = "one.json", .given_hash = "1"}, "one.json 1"},
      {{.given = "moved.json", .given_hash = "1", .resumed = one}, "moved.json 1"},
      {{.given = "one.json", .given_hash = "1", .resumed = unknown}, "one.json 1"},
      {{.given = "one.json", .given_hash = "1", .resumed = two}, "error"},
      {{.given = "one.json", .given_hash = "1", .initial = two}, "one.json 1 noted"},
      {{.given = "one.json", .given_is_there = false}, "error"},
      {{.given = "one.json", .given_is_there = false, .resumed = one}, "one.json 1"},
      {{.given = "one.json", .given_is_there = false, .resumed = unknown}, "error"},
      {{.given = "one.json", .given_is_there = false, .initial = one}, "error"},
      {{.given = "byte", .given_hash = kByteTokenizerHash, .resumed = one}, "error"},
      {{.given = "none", .resumed = one}, "none "},
  };
  for (const Case& c : cases) EXPECT_EQ(chosen(c.facts), c.expected) << c.facts.given << " " << c.facts.given_hash;
}

class TokenizerSourceTest : public testing::Test {
 protected:
  static constexpr const char* kTokenizer = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";

  std::string resolved(const std::string& tokenizer) const {
    Config config;
    config.data.tokenizer = tokenizer;
    resolve_tokenizer(config, Purpose::kTrain, std::nullopt);
    return config.data.tokenizer + " " + config.data.tokenizer_hash;
  }
  std::string refusal(const std::string& tokenizer) const {
    return message_of<InputError>([&] { resolved(tokenizer); });
  }

  TempDir dir_;
};

TEST_F(TokenizerSourceTest, AFolderIsTheFileInIt) {
  write_file(dir_ / "t/tokenizer.json", kTokenizer);
  const std::string hash = tokenizer_hash(kTokenizer, "t");
  EXPECT_EQ(resolved(dir_ / "t"), dir_ / "t/tokenizer.json" + (" " + hash));
  EXPECT_EQ(resolved(dir_ / "t/tokenizer.json"), dir_ / "t/tokenizer.json" + (" " + hash));
  EXPECT_EQ(tokenizer_of_directory(dir_ / "t").hash, hash);
}

TEST_F(TokenizerSourceTest, WhatIsNoTokenizerIsRefused) {
  write_file(dir_ / "list.json", "[]");
  write_file(dir_ / "text.json", "text");
  write_file(dir_ / "model.json", R"({"model": 5})");
  write_file(dir_ / "ids.json", R"({"model": {"vocab": {"a": "0"}}})");
  for (const char* name : {"list.json", "text.json", "model.json", "ids.json"}) {
    expect_mentions(refusal(dir_ / name), {name, "is not a Hugging Face tokenizer.json"});
  }
  expect_mentions(refusal(dir_ / "missing.json"), {"missing.json is not a file, expected a tokenizer.json"});
  expect_mentions(refusal(dir_ / "list.json/x"), {"list.json/x"});
  write_file(dir_ / "empty/notes.txt", "");
  expect_mentions(refusal(dir_ / "empty"), {"empty", "the folder has no tokenizer.json"});
  write_file(dir_ / "spm/tokenizer.model", "");
  expect_mentions(refusal(dir_ / "spm"), {"tokenizer.model, but no tokenizer.json", "save_pretrained"});
  write_file(dir_ / "gpt2/vocab.json", "{}");
  write_file(dir_ / "gpt2/merges.txt", "");
  expect_mentions(refusal(dir_ / "gpt2"), {"vocab.json and merges.txt, but no tokenizer.json"});
}

}  // namespace
}  // namespace octavo
