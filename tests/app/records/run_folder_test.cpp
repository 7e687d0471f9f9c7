// Whether a run may write into a folder that is there.
#include "app/records/run_folder.h"

#include "tests/app/train/run_fixture.h"

namespace octavo {
namespace {

TEST(RunFolderTest, AFolderBelongsToOneRun) {
  EXPECT_EQ(use_of_folder({}), FolderUse::kSetAside);  // new, so that there is nothing to move
  EXPECT_EQ(use_of_folder({.resumes = true}), FolderUse::kContinue);
  // A restart: before the first checkpoint, from one, and with changes that were allowed.
  const FolderFacts restart{.has_steps = true, .knows_its_run = true, .computes_the_same = true};
  EXPECT_EQ(use_of_folder(restart), FolderUse::kContinue);
  EXPECT_EQ(use_of_folder({.has_steps = true, .knows_its_run = true, .resumes = true, .resumes_its_checkpoint = true}),
            FolderUse::kContinue);
  // A run with checkpoints that are not resumed, such as one whose checkpoint.dir was changed.
  EXPECT_EQ(
      use_of_folder({.has_steps = true, .knows_its_run = true, .computes_the_same = true, .has_checkpoints = true}),
      FolderUse::kRefuse);
  // Another run: from the beginning, and from a checkpoint elsewhere.
  const FolderFacts other{.has_steps = true, .knows_its_run = true};
  EXPECT_EQ(use_of_folder(other), FolderUse::kRefuse);
  EXPECT_EQ(use_of_folder({.has_steps = true, .knows_its_run = true, .resumes = true}), FolderUse::kRefuse);
  // checkpoint.resume: never begins again in the folder of any run.
  for (FolderFacts again : {restart, other, FolderFacts{.has_steps = true}}) {
    again.begins_again = true;
    EXPECT_EQ(use_of_folder(again), FolderUse::kSetAside);
  }
  // One that never came to a step leaves nothing to lose.
  EXPECT_EQ(use_of_folder({.has_steps = false, .knows_its_run = true}), FolderUse::kSetAside);
  // Metrics without a config tell nothing.
  EXPECT_EQ(use_of_folder({.has_steps = true}), FolderUse::kRefuse);
  EXPECT_EQ(use_of_folder({.has_steps = true, .resumes = true}), FolderUse::kContinue);
}

using MovedDataTest = RunTest;

// A run that was killed before its first checkpoint begins again in its folder, also where its data is in another
// place.
TEST_F(MovedDataTest, DataThatIsGoneDoesNotTellRunsApart) {
  namespace fs = std::filesystem;
  const Config earlier = run_config();
  fs::create_directories(earlier.logging.dir);
  std::ofstream(fs::path(earlier.logging.dir) / "config.yaml") << to_yaml(earlier);
  std::ofstream(fs::path(earlier.logging.dir) / "metrics.jsonl") << "{\"step\":1}\n";
  const Config now = run_config({fmt::format("data.train=[{{path: {}/moved}}]", dir_.string())});
  EXPECT_THROW(find_use_of_folder(now, ""), InputError) << "the former data is still there";
  for (const char* suffix : {".bin", ".idx"}) {
    fs::rename((dir_ / "corpus").string() + suffix, (dir_ / "moved").string() + suffix);
  }
  EXPECT_EQ(find_use_of_folder(now, ""), FolderUse::kContinue);
  EXPECT_THROW(find_use_of_folder(run_config({"training.seed=7"}), ""), InputError) << "another run";
}

}  // namespace
}  // namespace octavo
