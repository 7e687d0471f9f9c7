#include "data/tokens/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/files/json_input.h"
#include "data/inspect.h"
#include "data/tokens/byte_tokenizer.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

using Texts = std::vector<std::string>;

TEST(ByteTokenizer, RoundTrip) {
  std::string all;
  for (int c = 0; c < 256; ++c) all.push_back(static_cast<char>(c));
  const std::vector<int32_t> ids = ByteTokenizer::encode(all);
  for (int32_t c = 0; c < 256; ++c) EXPECT_EQ(ids[static_cast<size_t>(c)], c);
  EXPECT_EQ(ByteTokenizer::decode(ids), all);
  EXPECT_EQ(ByteTokenizer::decode(std::vector<int32_t>{256, 'a', 257, 258, 271, 'b', -1}), "ab");
}

TEST(Pack, TextJsonlAndTrees) {
  const TempDir dir;
  write_file(dir / "one.txt", "first");
  write_file(dir / "two.jsonl", "{\"text\": \"a\\n\\u00e9\"}\n\n{\"id\": 3, \"text\": \"b\"}");
  write_file(dir / "tree/z.c", "z");
  write_file(dir / "tree/a/deep.h", "deep");
  write_file(dir / "tree/a.h", "a.h");
  write_file(dir / "tree/empty.h", "");
  write_file(dir / "tree/binary.o", std::string_view("x\0y", 3));
  std::filesystem::create_directory_symlink(dir / "tree", dir / "tree/loop");
  std::filesystem::create_symlink(dir / "one.txt", dir / "tree/link.txt");

  const PackSummary summary =
      pack({.inputs = {dir / "one.txt", dir / "two.jsonl", dir / "tree"}, .output = dir / "out/p"});
  EXPECT_EQ(texts_of(dir / "out/p"), (Texts{"first", "a\n\xc3\xa9", "b", "a.h", "deep", "z"}));
  EXPECT_EQ(summary.documents, 6);
  EXPECT_EQ(summary.tokens, 5 + 4 + 1 + 3 + 4 + 1);
  EXPECT_EQ(summary.skipped_files, (std::map<std::string, int64_t>{{".o", 1}}));
  EXPECT_EQ(summary.repeated_files, Texts{dir / "tree/link.txt"});
  EXPECT_EQ(summary.empty_documents, 1);
  EXPECT_EQ(summary.unreadable.size(), 0);
  EXPECT_EQ(TokenFile(dir / "out/p").dtype(), TokenDtype::kU16);
  const auto sidecar = nlohmann::json::parse(read_whole_file(dir / "out/p.json"));
  EXPECT_EQ(sidecar, nlohmann::json::parse(
                         R"({"tokenizer":"byte","vocab_size":272,"bos":256,"eos":257,"documents":6,"tokens":18})"));
}

TEST(Pack, InputListAndHeldOutDocuments) {
  const TempDir dir;
  std::string list;
  for (int i = 0; i < 7; ++i) {
    write_file(dir / std::to_string(i), "text " + std::to_string(i));
    list += dir / std::to_string(i) + "\n";
  }
  write_file(dir / "list", list);
  const PackSummary summary = pack({.input_list = dir / "list", .output = dir / "p", .hold_out_every = 3});
  EXPECT_EQ(texts_of(dir / "p"), (Texts{"text 0", "text 1", "text 3", "text 4", "text 6"}));
  EXPECT_EQ(texts_of(dir / "p_held_out"), (Texts{"text 2", "text 5"}));
  EXPECT_EQ(summary.documents, 5);
  EXPECT_EQ(summary.held_out_documents, 2);
  EXPECT_EQ(summary.held_out_tokens, 12);
  pack({.input_list = dir / "list",
        .output = dir / "p",
        .hold_out_every = 7,
        .hold_out_output = dir / "h",
        .overwrite = true});
  EXPECT_EQ(texts_of(dir / "h"), (Texts{"text 6"}));
}

TEST(Pack, ItsOwnOutputIsNoInput) {
  const TempDir dir;
  write_file(dir / "tree/a", "a");
  for (int again = 0; again < 2; ++again) {
    pack({.inputs = {dir / "tree"}, .output = dir / "tree/out", .overwrite = true});
    EXPECT_EQ(texts_of(dir / "tree/out"), Texts{"a"});
  }
}

TEST(Pack, ExistingOutputIsReplacedOnRequestAlone) {
  const TempDir dir;
  write_file(dir / "old", "old");
  write_file(dir / "new/a", "a");
  write_file(dir / "new/b", "b");
  pack({.inputs = {dir / "old"}, .output = dir / "p"});
  PackOptions again{.inputs = {dir / "new"}, .output = dir / "p"};
  const auto refused = [&](const std::string& name) {
    expect_mentions(message_of<InputError>([&] { pack(again); }), {name + ": exists already", "--overwrite"});
  };
  refused("p.bin");
  EXPECT_EQ(texts_of(dir / "p"), Texts{"old"});
  for (const char* left : {"p.idx", "p.json"}) {  // One existing file of a dataset suffices for the refusal.
    std::filesystem::remove(dir / (left == std::string("p.idx") ? "p.bin" : "p.idx"));
    refused(left);
  }
  again.output = dir / "q";
  again.hold_out_every = 2;
  write_file(dir / "q_held_out.json", "{}");
  refused("q_held_out.json");
  EXPECT_FALSE(std::filesystem::exists(dir / "q.bin"));
  again.overwrite = true;
  pack(again);
  EXPECT_EQ(texts_of(dir / "q_held_out"), Texts{"b"});
  // Without hold_out_every, the document that was held out would be added to the corpus.
  again.hold_out_every = 0;
  expect_mentions(message_of<InputError>([&] { pack(again); }), {"q_held_out.idx holds documents", "--hold-out-every"});
  EXPECT_EQ(texts_of(dir / "q"), Texts{"a"});
}

TEST(Pack, WhatIsNotTextIsSkippedAndNamed) {
  const TempDir dir;
  write_file(dir / "tree/a.txt", "a");
  for (const char* name : {"a.parquet", "b.PARQUET", "c.lz4"}) write_file(dir / (std::string("tree/") + name), "PAR1");
  for (const char* name : {"e.png", "f"}) write_file(dir / (std::string("tree/") + name), std::string_view("\0", 1));
  for (const char* name : {".git/config", "sub/.git", "sub/.hg/store"})
    write_file(dir / (std::string("tree/") + name), "https://user:SECRET@example.com");
  std::filesystem::create_symlink("missing", dir / "tree/broken");
  std::filesystem::create_symlink("/proc/self", dir / "tree/process");
  std::filesystem::create_symlink("/proc/self/environ", dir / "tree/environ");
  const PackSummary summary = pack({.inputs = {dir / "tree"}, .output = dir / "p"});
  EXPECT_EQ(texts_of(dir / "p"), Texts{"a"});
  EXPECT_EQ(
      summary.describe_skipped(),
      "skipped 11 files and folders: 1 without a suffix, 2 .git, 1 .hg, 1 .lz4, 2 .parquet, 1 .png, 1 broken link, "
      "1 folder of the kernel, 1 special file (scripts/tokenize_hf.py reads .parquet)");
  EXPECT_EQ(PackSummary{}.describe_skipped(), "");
  const auto refusal = [&](const std::string& input) {
    return message_of<InputError>([&] { pack({.inputs = {dir / input}, .output = dir / "q"}); });
  };
  expect_mentions(refusal("tree/a.parquet"), {"a.parquet: octavo pack does not read .parquet files", "tokenize_hf.py"});
  expect_mentions(refusal("tree/c.lz4"), {"c.lz4: octavo pack does not read .lz4 files"});
  expect_mentions(refusal("tree/process"), {"tree/process: shows the state of the kernel"});
  expect_mentions(refusal("tree/environ"), {"tree/environ: shows the state of the kernel"});
  std::filesystem::remove(dir / "tree/a.txt");
  expect_mentions(refusal("tree"), {"no document", "2 .parquet", "scripts/tokenize_hf.py"});
}

TEST(Pack, AFileIsReadOnce) {
  const TempDir dir;
  write_file(dir / "d/sub/a.txt", "a");
  write_file(dir / "d/b.jsonl", "{\"text\": \"b\"}\n");
  std::filesystem::create_symlink("../d", dir / "d/cycle");
  std::filesystem::create_symlink("sub", dir / "d/alias");
  std::filesystem::create_hard_link(dir / "d/b.jsonl", dir / "d/z.jsonl");
  const Texts repeated{dir / "d/b.jsonl", dir / "d/./b.jsonl", dir / "d/z.jsonl", dir / "d/sub/a.txt"};
  const PackSummary summary =
      pack({.inputs = {dir / "d", repeated[0], repeated[1], dir / "d/sub"}, .output = dir / "p"});
  EXPECT_EQ(texts_of(dir / "p"), (Texts{"b", "a"}));
  EXPECT_EQ(std::set(summary.repeated_files.begin(), summary.repeated_files.end()),
            std::set(repeated.begin(), repeated.end()));
  expect_mentions(summary.describe_repeated(), {"read once: 4 have the content", "such as", "z.jsonl"});
}

TEST(Pack, CompressedVersionsOfAFileAreReadOnce) {
  const TempDir dir;
  const std::string packed("\x1f\x8b\x08\0\0\0\0\0\x02\x03\x4b\x04\0\x43\xbe\xb7\xe8\x01\0\0\0", 21);  // The text "a".
  write_file(dir / "d/a.txt.gz", packed);
  write_file(dir / "d/a.txt", "a");
  write_file(dir / "d/b.txt", "b");
  write_file(dir / "d/b.txt.gz", packed);
  EXPECT_EQ(pack({.inputs = {dir / "d"}, .output = dir / "p"}).repeated_files, Texts{dir / "d/a.txt.gz"});
  EXPECT_EQ(texts_of(dir / "p"), (Texts{"a", "b", "a"}));
  // The paths may be spelled in different ways.
  const PackOptions named{.inputs = {dir / "d/a.txt", dir / "d/../d/./a.txt.gz"}, .output = dir / "q"};
  EXPECT_EQ(pack(named).repeated_files, Texts{dir / "d/../d/./a.txt.gz"});
}

TEST(Pack, ACacheOfTheHubHasItsNamesInLinks) {
  const TempDir dir;
  for (const std::string name : {"0", "1"}) {
    write_file(dir / ("cache/blobs/" + name), "{\"text\": \"" + name + "\"}");
    for (const std::string revision : {"r1", "r2"}) {
      std::filesystem::create_directories(dir / ("cache/snapshots/" + revision));
      std::filesystem::create_symlink("../../blobs/" + name,
                                      dir / ("cache/snapshots/" + revision + "/" + name + ".jsonl"));
    }
  }
  for (const char* input : {"cache", "cache/snapshots/r1"}) {
    pack({.inputs = {dir / input}, .output = dir / "p", .overwrite = true});
    EXPECT_EQ(texts_of(dir / "p"), (Texts{"0", "1"}));
  }
}

TEST(Pack, EqualDocumentsAreOnOneSide) {
  const TempDir dir;
  std::string lines;
  for (const char* text : {"1", "2", "3", "1", "", "2", "2", "5", "3"})
    lines += fmt::format("{{\"body\": \"{}\"}}\n", text);
  write_file(dir / "a.jsonl", lines);
  PackOptions options{.inputs = {dir / "a.jsonl"}, .output = dir / "p", .text_field = "body", .hold_out_every = 3};
  const PackSummary summary = pack(options);  // Documents 3 and 6 have the texts 3 and 2.
  EXPECT_EQ(texts_of(dir / "p"), (Texts{"1", "1", "5"}));
  EXPECT_EQ(texts_of(dir / "p_held_out"), (Texts{"2", "3", "2", "2", "3"}));
  EXPECT_EQ(summary.held_out_as_equals, 3);
  EXPECT_EQ(summary.empty_documents, 1);
  EXPECT_EQ(summary.files, 1);
  write_file(dir / "a.jsonl", "{\"body\": \"a\"}\n{\"body\": \"a\"}\n");
  options.hold_out_every = 2;
  options.overwrite = true;
  expect_mentions(message_of<InputError>([&] { pack(options); }), {"each of the 2 documents is held out"});
  options.text_field = "text";
  expect_mentions(message_of<InputError>([&] { pack(options); }), {"no field 'text'", "--text-field"});
  EXPECT_EQ(texts_of(dir / "p"), (Texts{"1", "1", "5"}));
}

TEST(Pack, BadInputIsRefusedByName) {
  const TempDir dir;
  write_file(dir / "old.txt", "old");
  pack({.inputs = {dir / "old.txt"}, .output = dir / "p"});
  write_file(dir / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  write_file(dir / "none.jsonl", "{\"txt\": \"a\"}\n");
  write_file(dir / "type.jsonl", "{\"text\": 3}\n");
  write_file(dir / "bom.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\n");
  write_file(dir / "nul", std::string_view("ab\0", 3));
  write_file(dir / "empty", "");
  std::filesystem::create_directory(dir / "no_files");
  const auto refuse = [&](const char* input, const std::vector<std::string>& mentions, PackOptions options = {}) {
    if (*input != '\0') options.inputs = {dir / input};
    options.output = dir / "p";
    options.overwrite = true;
    expect_mentions(message_of<InputError>([&] { pack(options); }), mentions);
  };
  refuse("bad.jsonl", {"bad.jsonl:2", "is not JSON"});
  refuse("none.jsonl", {"none.jsonl:1", "no field 'text'"});
  refuse("type.jsonl", {"type.jsonl:1", "number", "string"});
  refuse("bom.jsonl", {"bom.jsonl:1", "byte order mark"});
  refuse("nul", {"nul", "NUL byte at offset 2"});
  refuse("missing", {"missing", "no such file"});
  refuse("", {"missing"}, {.input_list = dir / "missing"});
  refuse("empty", {"no document"});
  refuse("no_files", {"no document"});
  refuse("", {"no input"});
  refuse("old.txt", {"hold_out_every is 1"}, {.hold_out_every = 1});
  refuse("old.txt", {"1 documents", "one in 2"}, {.hold_out_every = 2});
  expect_mentions(message_of<InputError>([&] { pack({.inputs = {dir / "old.txt"}}); }), {"output"});
  // The older dataset is intact, and the aborted run left no temporary file.
  EXPECT_EQ(texts_of(dir / "p"), Texts{"old"});
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(dir / "p").parent_path())) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST(Pack, AFullDiskLeavesBothOutputsAsTheyWere) {
  const TempDir dir;
  for (const char* name : {"a", "b"}) write_file(dir / (std::string("old/") + name), name);
  write_file(dir / "new/c", "c");
  write_file(dir / "new/d", std::string(1 << 16, 'd'));
  pack({.inputs = {dir / "old"}, .output = dir / "p", .hold_out_every = 2, .hold_out_output = dir / "h"});
  const Texts old = texts_of(dir / "p");
  const Texts old_held_out = texts_of(dir / "h");
  const PackOptions again{.inputs = {dir / "new"},
                          .output = dir / "p",
                          .hold_out_every = 2,
                          .hold_out_output = dir / "h",
                          .overwrite = true};
  {
    const FileSizeLimit limit(4096);
    expect_mentions(message_of<Error>([&] { pack(again); }), {"h.bin", "File too large"});
  }
  EXPECT_EQ(texts_of(dir / "p"), old);
  EXPECT_EQ(texts_of(dir / "h"), old_held_out);
}

TEST(Pack, UnreadableFilesOfATreeAreCounted) {
  if (::geteuid() == 0) GTEST_SKIP() << "root can read every file";
  const TempDir dir;
  write_file(dir / "tree/a", "a");
  write_file(dir / "tree/b", "b");
  std::filesystem::permissions(dir / "tree/b", std::filesystem::perms::none);
  EXPECT_EQ(pack({.inputs = {dir / "tree"}, .output = dir / "p"}).unreadable.size(), 1);
  EXPECT_EQ(texts_of(dir / "p"), Texts{"a"});
}

TEST(Inspect, ReportsWhatIsInATokenFile) {
  const TempDir dir;
  write_file(dir / "a", "abab");
  write_file(dir / "b", "ba");
  pack({.inputs = {dir / "a", dir / "b"}, .output = dir / "p"});
  const auto json = inspect_token_file(dir / "p");
  EXPECT_EQ(json["document_length"], (nlohmann::ordered_json{{"min", 2}, {"mean", 3.0}, {"max", 4}}));
  EXPECT_EQ(json["token_id"], (nlohmann::ordered_json{{"min", 'a'}, {"max", 'b'}}));
  EXPECT_EQ(json["sidecar"]["tokenizer"], "byte");
  const std::pair<const char*, nlohmann::json> facts[] = {
      {"format", "megatron"}, {"dtype", "uint16"}, {"documents", 2}, {"sequences", 2}, {"tokens", 6}, {"intact", true}};
  for (const auto& [key, value] : facts) EXPECT_EQ(json[key], value) << key;
  // The tokens a and b occur three times each. Within a document each a is followed by b, and each b by a.
  EXPECT_NEAR(json["entropy_nats"]["unigram"].get<double>(), std::log(2.0), 1e-12);
  EXPECT_NEAR(json["entropy_nats"]["bigram"].get<double>(), 0, 1e-12);
}

TEST(Inspect, BigramEntropyStopsAtDocumentBoundaries) {
  const TempDir dir;
  // Within the documents the pair 0 0 occurs twice, and 0 1 and 1 0 once each. A pair across the boundary would be 1 1.
  write_tokens(dir / "t", {{0, 0, 0, 1}, {1, 0}}, TokenDtype::kU8);
  const auto json = inspect_token_file(dir / "t");
  const double after_0 = -(2.0 / 3 * std::log(2.0 / 3) + 1.0 / 3 * std::log(1.0 / 3));
  EXPECT_NEAR(json["entropy_nats"]["bigram"].get<double>(), 3.0 / 4 * after_0, 1e-12);
  const double unigram = -(4.0 / 6 * std::log(4.0 / 6) + 2.0 / 6 * std::log(2.0 / 6));
  EXPECT_NEAR(json["entropy_nats"]["unigram"].get<double>(), unigram, 1e-12);
}

TEST(Inspect, SidecarThatContradictsIsReported) {
  const TempDir dir;
  write_tokens(dir / "t", {{1, 2, 300}}, TokenDtype::kU16);
  write_file(dir / "t.json", R"({"vocab_size": 272, "documents": 2, "tokens": 3})");
  const auto json = inspect_token_file(dir / "t.bin");
  EXPECT_EQ(json["intact"], false);
  ASSERT_EQ(json["problems"].size(), 2u);
  expect_mentions(json["problems"].dump(), {"2 documents", "token id 300", "vocabulary of 272"});
  write_file(dir / "t.json", R"({"vocab_size": 18446744073709551615, "documents": 1, "tokens": 18446744073709551615})");
  const auto beyond = inspect_token_file(dir / "t");
  ASSERT_EQ(beyond["problems"].size(), 1u) << "what does not fit int64 is large, not negative";
  expect_mentions(beyond["problems"].dump(), {"9223372036854775807 tokens", "the file has 1 and 3"});
  for (const std::string& text : {std::string("["), "{}" + std::string(kMaxOrderedJsonBytes, ' ')}) {
    write_file(dir / "t.json", text);
    EXPECT_EQ(inspect_token_file(dir / "t")["intact"], false);
  }
  EXPECT_THROW(inspect_token_file(dir / "missing"), InputError);
  write_tokens(dir / "empty", {});
  EXPECT_EQ(inspect_token_file(dir / "empty")["tokens"], 0);
  EXPECT_TRUE(inspect_token_file(dir / "empty")["token_id"].is_null());
}

TEST(Inspect, SamplesAsJsonLines) {
  const TempDir dir;
  write_tokens(dir / "t", {{1, 2, 3}, {4, 5, 6, 7, 8, 9}});
  DataConfig config;
  config.train = {{.paths = {dir / "t"}}};
  config.seq_len = 3;
  config.shuffle = Shuffle::kNone;
  std::ostringstream all, tail;
  write_samples(config, 0, 3, all);
  EXPECT_EQ(all.str(),
            "{\"sample\":0,\"dataset\":0,\"epoch\":0,\"window\":0,\"tokens\":[1,2,3,4]}\n"
            "{\"sample\":1,\"dataset\":0,\"epoch\":0,\"window\":1,\"tokens\":[5,6,7,8]}\n"
            "{\"sample\":2,\"dataset\":0,\"epoch\":1,\"window\":0,\"tokens\":[1,2,3,4]}\n");
  write_samples(config, 2, 3, tail);
  EXPECT_EQ(tail.str(), "{\"sample\":2,\"dataset\":0,\"epoch\":1,\"window\":0,\"tokens\":[1,2,3,4]}\n");
  EXPECT_THROW(write_samples(config, 3, 2, tail), InputError);
  EXPECT_THROW(write_samples(config, -1, 2, tail), InputError);
}

}  // namespace
}  // namespace octavo
