#include "data/overlap.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files/input_file.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class OverlapTest : public testing::Test {
 protected:
  OverlapTest() {
    write_tokens(dir_ / "corpus/train", counting_documents({50, 30}));
    write_tokens(dir_ / "corpus/train_held_out", counting_documents({40}, 500));
    write_tokens(dir_ / "as_long", counting_documents({40}, 900));
  }
  using Sources = std::vector<DatasetSource>;
  Sources sources(const std::vector<std::string>& names, double weight = 1) const {
    Sources found(1);
    for (const std::string& name : names) found[0].paths.push_back(dir_ / name);
    found[0].weight = weight;
    return found;
  }
  void refused(const Sources& train, const Sources& validation, const std::vector<std::string>& mentions) const {
    expect_mentions(message_of<InputError>([&] { check_overlap(train, validation); }), mentions);
  }

  TempDir dir_;
};

TEST_F(OverlapTest, HeldOutFilesAreFoundByPlaceAndByContent) {
  const std::string relation = "are the same file", content = "have the same content";
  check_overlap(sources({"corpus/train", "as_long"}), sources({"corpus/train_held_out"}));
  refused(sources({"corpus"}), sources({"corpus/train_held_out.idx"}),
          {"corpus/train_held_out.bin of data.train", "of data.validation", relation, "data.allow_overlap: true"});
  std::filesystem::create_directory_symlink(dir_ / "corpus", dir_ / "link");
  refused(sources({"corpus/train"}), sources({"link/train"}), {"corpus/train.bin", "link/train.bin", relation});
  for (const char* suffix : {".bin", ".idx"}) {
    std::filesystem::create_hard_link(dir_ / ("corpus/train" + std::string(suffix)),
                                      dir_ / ("hard" + std::string(suffix)));
    std::filesystem::copy_file(dir_ / ("corpus/train" + std::string(suffix)), dir_ / ("copy" + std::string(suffix)));
  }
  refused(sources({"as_long", "corpus/train"}), sources({"hard"}), {"hard.bin", relation});
  refused(sources({"copy", "as_long"}), sources({"corpus"}), {"copy.bin", "corpus/train.bin", content});
  overwrite(dir_ / "copy.bin", 0, "\xff");
  check_overlap(sources({"copy", "as_long"}), sources({"corpus"}));
  check_overlap(sources({"corpus"}, 0), sources({"corpus"}));  // A dataset with weight 0 is never read.
  EXPECT_THROW(check_overlap(sources({"nowhere"}), {}), UnreadableFile);
}

// Text is equal if its tokens are, in whatever format and dtype, and however it is divided into documents.
TEST_F(OverlapTest, ContentIsComparedByItsTokens) {
  write_tokens(dir_ / "i32", counting_documents({50, 30}), TokenDtype::kI32);
  write_tokens(dir_ / "u16", counting_documents({50, 30}), TokenDtype::kU16);
  write_tokens(dir_ / "u8", counting_documents({20, 0, 60}), TokenDtype::kU8);
  std::vector<uint16_t> tokens(80);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  write_file(dir_ / "shard.bin", llm_c_header(20240520, 1, 80) + u16_bytes(tokens));
  for (const char* held_out : {"i32", "u8", "shard"})
    refused(sources({"as_long", "u16"}), sources({held_out}), {"u16.bin", held_out, "have the same content"});
  write_tokens(dir_ / "empty", {{}});
  write_tokens(dir_ / "also_empty", {{}}, TokenDtype::kU16);
  check_overlap(sources({"empty", "u16"}), sources({"also_empty"}));
}

// Blocks of tokens from the first one to the last are compared.
TEST_F(OverlapTest, LongFilesAreComparedByBlocks) {
  std::vector<int32_t> tokens(2'200'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 251);
  write_tokens(dir_ / "u16", {tokens}, TokenDtype::kU16);
  write_tokens(dir_ / "u8", {tokens}, TokenDtype::kU8);
  refused(sources({"u16"}), sources({"u8"}), {"u16.bin", "u8.bin", "have the same content"});
  for (const auto offset : {size_t{0}, tokens.size() - 1}) {
    overwrite(dir_ / "u8.bin", static_cast<int64_t>(offset), "\xff");
    check_overlap(sources({"u16"}), sources({"u8"}));
    overwrite(dir_ / "u8.bin", static_cast<int64_t>(offset), std::string(1, static_cast<char>(tokens[offset])));
  }
}

TEST_F(OverlapTest, ADatasetNamesAFileOnce) {
  refused(sources({"as_long", "as_long"}), {}, {"data.train has the file", "as_long.bin twice", "more weight"});
  refused({}, sources({"corpus", "corpus/train.bin"}), {"data.validation has the file", "corpus/train.bin twice"});
  std::filesystem::create_hard_link(dir_ / "as_long.bin", dir_ / "hard.bin");
  refused(sources({"as_long", "hard"}), {}, {"hard.bin twice, also as", "as_long.bin"});
  Sources two = sources({"as_long"});
  two.push_back(two.front());
  check_overlap({}, two);  // Two datasets of data.validation may share a file.
  two[1].name = "again";
  refused(two, {},
          {"the datasets as_long and again of data.train share the file", "more weight", "data.allow_overlap: true"});
  two[1].paths = {dir_ / "hard"};
  refused(two, {}, {"share the file", "hard.bin, also named", "as_long.bin"});
  two[1].weight = 0;
  check_overlap(two, {});
}

}  // namespace
}  // namespace octavo
