// Tests folders with the parts of a dataset, as tokenize_hf.py --part writes them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/sample_stream.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class PartsTest : public testing::Test {
 protected:
  PartsTest() {
    for (int part = 1; part <= 3; ++part) write_part(name(part), {{"part", part}});
  }
  static std::string name(int part) { return fmt::format("train/part-0000{}-of-00003", part); }
  // Writes a part of 10 tokens, or without tokens if it is part 2.
  void write_part(const std::string& name, const nlohmann::json& changes) const {
    nlohmann::json sidecar = {{"part", 1}, {"parts", 3}, {"parts_of", "a"}};
    sidecar.update(changes);
    const int part = sidecar["part"];
    sidecar.emplace("tokens", part == 2 ? 0 : 10);
    write_tokens(dir_ / name, part == 2 ? TokenLists{} : counting_documents({4, 6}, 10 * part));
    write_file(dir_ / (name + ".json"), sidecar.dump());
  }
  void remove(const std::string& name) const {
    for (const char* end : {".bin", ".idx", ".json"}) fs::remove(dir_ / (name + end));
  }
  SampleStream open(const std::string& path) const {
    DataConfig config{.train = {{.paths = {dir_ / path}}}, .seq_len = 3, .shuffle = Shuffle::kNone};
    return {config, config.train, 0};
  }
  void refused(const std::vector<std::string>& mentions) const {
    for (const char* folder : {"train", "."})
      expect_mentions(message_of<InputError>([&] { (void)open(folder); }), mentions);
  }

  TempDir dir_;
};

TEST_F(PartsTest, AFolderIsTheRowOfItsParts) {
  SampleStream stream = open("train");
  EXPECT_EQ(stream.num_tokens(), 20);
  std::vector<int32_t> tokens(4), all;
  for (int sample = 0; sample < 5; ++sample) {
    stream.read(stream.next(), tokens, {});
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(all,
            (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}));
  EXPECT_EQ(open(name(1)).num_tokens(), 10);
  // Another folder with another dataset or with files that are no parts.
  write_tokens(dir_ / "other/x", {{1, 2, 3, 4}});
  write_part("third/part", {{"parts", 1}, {"parts_of", "b"}});
  EXPECT_EQ(open(".").num_tokens(), 34);
}

TEST_F(PartsTest, AMissingPartIsRefused) {
  for (const int missing : {1, 2, 3}) {
    remove(name(missing));
    refused({"has 2 of the 3 parts", fmt::format("part {} is missing", missing)});
    write_part(name(missing), {{"part", missing}});
  }
}

TEST_F(PartsTest, APartThatIsThereTwiceIsRefused) {
  write_part("train/copy", {{"part", 3}});
  refused({"train/copy and ", name(3), "are both part 3 of 3"});
}

TEST_F(PartsTest, PartsOfOtherDatasetsAreRefused) {
  for (const auto& [dataset, parts] : {std::pair("b", 3), std::pair("a", 4)}) {
    write_part(name(3), {{"part", 3}, {"parts_of", dataset}, {"parts", parts}});
    refused({name(3), "of another dataset than", name(1), "part 1 of 3"});
  }
}

TEST_F(PartsTest, OtherTokenFilesAreRefused) {
  write_file(dir_ / "train/notes.txt", "no tokens");
  EXPECT_EQ(open("train").num_tokens(), 20);
  for (const std::string& stray : {std::string("train/stray"), name(2)}) {
    write_tokens(dir_ / stray, {{1, 2}});
    for (const char* sidecar : {"{}", "no JSON"}) {
      write_file(dir_ / (stray + ".json"), sidecar);
      refused({stray, "is not a part of a dataset", "in the same folder"});
    }
    remove("train/stray");
  }
}

TEST_F(PartsTest, FilesThatDoNotFitTheirSidecarsAreRefused) {
  write_part(name(3), {{"part", 3}, {"tokens", 11}});
  refused({name(3), "has tokens 11", "has 10, expected the same"});
  write_part(name(3), {{"part", 3}});
  for (const char* wrong : {R"({"part": 0})", R"({"part": 4})", R"({"part": "3"})", R"({"part": 1, "parts": null})",
                            R"({"part": 1, "parts": 3, "parts_of": 1})"}) {
    write_file(dir_ / (name(2) + ".json"), wrong);
    refused({name(2), "expected a part from 1 on"});
  }
}

}  // namespace
}  // namespace octavo
