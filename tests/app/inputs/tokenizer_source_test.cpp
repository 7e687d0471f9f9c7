#include "app/inputs/tokenizer_source.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/commands/import_export.h"
#include "app/text/tokenizer_files.h"
#include "checkpoint/checkpoint_format.h"
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
  const ModelTokenizer one{"one.json", "1"}, two{"two.json", "2"}, unknown{"old.json", ""}, none{"none", ""},
      nameless{"none", "1"};
  struct Case {
    TokenizerFacts facts;
    std::string expected;
  };
  const std::string byte = std::string("byte ") + kByteTokenizerHash;
  const Case cases[] = {
      {{.given = "auto"}, byte},
      {{.given = "auto", .has_byte_vocabulary = false}, "none  noted"},
      {{.given = "auto", .data = one, .has_byte_vocabulary = false}, byte},
      {{.given = "auto", .resumed = one}, "one.json 1"},
      {{.given = "auto", .initial = one}, "one.json 1"},
      {{.given = "auto", .initial = none}, "none "},
      {{.given = "auto", .initial = none, .data = two}, "two.json 2"},
      {{.given = "auto", .resumed = none, .data = two}, "two.json 2"},
      {{.given = "auto", .resumed = nameless}, "none 1"},
      {{.given = "auto", .resumed = one, .data = two}, "one.json 1"},
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

  // Writes a token file whose sidecar has the given content. Without content there is no sidecar. Returns its path.
  std::string tokens(const std::string& name, const std::string& sidecar) const {
    write_tokens(dir_ / name, {{1, 2, 3}});
    if (!sidecar.empty()) write_file(dir_ / (name + ".json"), sidecar);
    return dir_ / name;
  }
  // Returns the tokenizer of a run that begins from a Hugging Face directory without a tokenizer.
  std::string with_unknown_model(const std::string& train, const std::string& validation,
                                 const std::string& more = "") const {
    write_file(dir_ / "hf/config.json", "{}");
    write_file(dir_ / "config.yaml",
               fmt::format("data: {{train: [{}], validation: [{}]{}}}\nmodel: {{init_from: {}}}\n", train, validation,
                           more, dir_ / "hf"));
    Config config = load_config(dir_ / "config.yaml");
    const std::string note = resolve_tokenizer(config, Purpose::kTrain, std::nullopt);
    expect_mentions(note, {"the folder has no tokenizer.json", "the tokenizer of the model is unknown"});
    return config.data.tokenizer + " " + config.data.tokenizer_hash;
  }
  // Returns the tokenizer of a checkpoint with this vocabulary and metadata.
  std::string of_checkpoint(int64_t vocab_size, const nlohmann::json& meta) const {
    import_hf(std::string(OCTAVO_SOURCE_DIR) + "/tests/golden/gqa", dir_ / "checkpoint", true);
    const std::string path = dir_ / "checkpoint/manifest.json";
    CheckpointManifest manifest = manifest_from_text(read_whole_file(path), path);
    manifest.meta = meta;
    manifest.model.vocab_size = vocab_size;
    write_file(path, manifest_to_text(manifest));
    const ModelTokenizer tokenizer = tokenizer_of_checkpoint(Checkpoint(dir_ / "checkpoint"));
    return tokenizer.name + " " + tokenizer.hash;
  }

  const std::string byte_ = fmt::format("byte {}", kByteTokenizerHash);
  TempDir dir_;
};

// If the model's tokenizer is unknown, that of the token files is recorded, and no two are mixed.
TEST_F(TokenizerSourceTest, AnUnknownTokenizerIsThatOfAllTokenFiles) {
  const std::string a = tokens("a", R"({"tokenizer": "a/tokenizer.json", "tokenizer_hash": "1"})");
  const std::string again = tokens("again", R"({"tokenizer": "moved/tokenizer.json", "tokenizer_hash": "1"})");
  const std::string b = tokens("b", R"({"tokenizer": "b/tokenizer.json", "tokenizer_hash": "2"})");
  const std::string byte = tokens("byte", R"({"tokenizer": "byte"})"), plain = tokens("plain", "");
  const std::string old = tokens("old", R"({"tokenizer": "gone.json"})");
  const std::string hash = tokens("hash", R"({"tokenizer_hash": "1"})");
  const auto list = [](const std::string& one, const std::string& two) { return one + ", " + two; };
  EXPECT_EQ(with_unknown_model(list(again, plain), a), "a/tokenizer.json 1");
  EXPECT_EQ(with_unknown_model(list(byte, byte), byte), byte_);
  EXPECT_EQ(with_unknown_model(plain, plain), "none ");
  EXPECT_EQ(with_unknown_model(list(old, a), ""), "a/tokenizer.json 1") << "without a hash and a file nothing differs";
  EXPECT_EQ(with_unknown_model(hash, hash), "none 1");
  EXPECT_EQ(with_unknown_model(a, b, ", tokenizer: none"), "none ") << "the user says that it is unknown";
  const std::pair<std::string, std::string> mixed[] = {
      {list(a, b), ""}, {a, b}, {list(plain, a), list(again, b)}, {a, byte}, {old, byte}, {list(old, a), b}, {hash, b}};
  for (const auto& [train, validation] : mixed) {
    const std::string message = message_of<InputError>([&] { with_unknown_model(train, validation); });
    expect_mentions(message, {"has the tokenizer ", "expected the same in all sidecars"});
  }
  expect_mentions(message_of<InputError>([&] { with_unknown_model(a, b); }),
                  {b + ".json has the tokenizer b/tokenizer.json", a + ".json has a/tokenizer.json"});
}

// Earlier versions recorded their default, byte, for every model.
TEST_F(TokenizerSourceTest, ARecordedByteTokenizerIsBelievedIfItMayBeTrue) {
  const auto recorded = [](const std::string& hash = "") {
    nlohmann::json meta = {{"config", {{"data", {{"tokenizer", "byte"}}}}}};
    if (!hash.empty()) meta[kTokenizerHashKey] = hash;
    return meta;
  };
  for (const int64_t vocab_size : {256, 272}) EXPECT_EQ(of_checkpoint(vocab_size, recorded()), byte_);
  for (const int64_t vocab_size : {273, 320, 32000}) {
    EXPECT_EQ(of_checkpoint(vocab_size, recorded()), "none ");
    EXPECT_EQ(of_checkpoint(vocab_size, recorded(kByteTokenizerHash)), byte_);
  }
  // The size of a vocabulary says nothing about an imported model.
  for (const int64_t vocab_size : {112, 272, 320}) {
    EXPECT_EQ(of_checkpoint(vocab_size, octavo::import_meta(dir_ / "hf", {}, {})), "none ");
    EXPECT_EQ(of_checkpoint(vocab_size, octavo::import_meta(dir_ / "hf", {}, byte_tokenizer_files())), byte_);
  }
}

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
  write_file(dir_ / "it's \"$HOME\"/tokenizer.model", "");
  expect_mentions(refusal(dir_ / "it's \"$HOME\""), {" '" + (dir_ / "it'\\''s \"$HOME\"'") + " makes one"});
  write_file(dir_ / "gpt2/vocab.json", "{}");
  write_file(dir_ / "gpt2/merges.txt", "");
  expect_mentions(refusal(dir_ / "gpt2"), {"vocab.json and merges.txt, but no tokenizer.json"});
}

}  // namespace
}  // namespace octavo
