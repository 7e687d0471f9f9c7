// Whether a run may write into a folder that is there.
#include "app/train/run_folder.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace octavo
