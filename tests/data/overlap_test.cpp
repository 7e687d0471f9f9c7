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

TEST_F(OverlapTest, ADatasetNamesAFileOnce) {
  refused(sources({"as_long", "as_long"}), {}, {"data.train has the file", "as_long.bin twice", "more weight"});
  refused({}, sources({"corpus", "corpus/train.bin"}), {"data.validation has the file", "corpus/train.bin twice"});
  std::filesystem::create_hard_link(dir_ / "as_long.bin", dir_ / "hard.bin");
  refused(sources({"as_long", "hard"}), {}, {"hard.bin twice, also as", "as_long.bin"});
  Sources two = sources({"as_long"});
  two.push_back(two.front());
  check_overlap(two, {});  // Two training datasets may share a file.
}

}  // namespace
}  // namespace octavo
