// Tests whether a run may write into an existing folder.
#include "app/records/run_folder.h"

#include "app/process/events.h"
#include "tests/app/train/run_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

TEST(RunFolderTest, AFolderBelongsToOneRun) {
  // The folder is new, so there is nothing to set aside.
  EXPECT_EQ(use_of_folder({}), FolderUse::kSetAside);
  EXPECT_EQ(use_of_folder({.resumes = true}), FolderUse::kContinue);
  // A restart is accepted before the first checkpoint, from a checkpoint, and with changes that were allowed.
  const FolderFacts restart{.has_steps = true, .knows_its_run = true, .computes_the_same = true};
  EXPECT_EQ(use_of_folder(restart), FolderUse::kContinue);
  EXPECT_EQ(use_of_folder({.has_steps = true, .knows_its_run = true, .resumes = true, .resumes_its_checkpoint = true}),
            FolderUse::kContinue);
  // A run is refused if the folder's run has checkpoints that are not resumed, for example because checkpoint.dir was
  // changed.
  EXPECT_EQ(
      use_of_folder({.has_steps = true, .knows_its_run = true, .computes_the_same = true, .has_checkpoints = true}),
      FolderUse::kRefuse);
  // A run whose checkpoints are lost does not begin again silently, but may resume a checkpoint from elsewhere.
  FolderFacts lost = restart;
  lost.has_saved = true;
  EXPECT_EQ(use_of_folder(lost), FolderUse::kLost);
  lost.resumes = true;
  EXPECT_EQ(use_of_folder(lost), FolderUse::kContinue);
  // Another run is refused, from the beginning and from a checkpoint elsewhere.
  const FolderFacts other{.has_steps = true, .knows_its_run = true};
  EXPECT_EQ(use_of_folder(other), FolderUse::kRefuse);
  EXPECT_EQ(use_of_folder({.has_steps = true, .knows_its_run = true, .resumes = true}), FolderUse::kRefuse);
  // checkpoint.resume=never sets the folder of any run aside.
  lost.resumes = false;
  for (FolderFacts again : {restart, other, lost, FolderFacts{.has_steps = true}}) {
    again.begins_again = true;
    EXPECT_EQ(use_of_folder(again), FolderUse::kSetAside);
  }
  // A run that did not finish a step has nothing to lose.
  EXPECT_EQ(use_of_folder({.has_steps = false, .knows_its_run = true}), FolderUse::kSetAside);
  // Metrics without a config do not tell which run they belong to.
  EXPECT_EQ(use_of_folder({.has_steps = true}), FolderUse::kRefuse);
  EXPECT_EQ(use_of_folder({.has_steps = true, .resumes = true}), FolderUse::kContinue);
}

using MovedDataTest = RunTest;

// A run that was killed before its first checkpoint begins again in its folder, even if its data has been moved.
TEST_F(MovedDataTest, DataThatIsGoneDoesNotTellRunsApart) {
  namespace fs = std::filesystem;
  const Config earlier = run_config();
  fs::create_directories(earlier.logging.dir);
  std::ofstream(fs::path(earlier.logging.dir) / "config.yaml") << to_yaml(earlier);
  std::ofstream(fs::path(earlier.logging.dir) / "metrics.jsonl") << "{\"step\":1}\n";
  std::ofstream(fs::path(earlier.logging.dir) / "events.jsonl");
  const Config now = run_config({fmt::format("data.train=[{{path: {}/moved}}]", dir_.string())});
  EXPECT_THROW(find_use_of_folder(now, ""), InputError) << "the data of the earlier run still exists";
  for (const char* suffix : {".bin", ".idx"}) {
    fs::rename((dir_ / "corpus").string() + suffix, (dir_ / "moved").string() + suffix);
  }
  EXPECT_EQ(find_use_of_folder(now, ""), FolderUse::kContinue);
  EXPECT_THROW(find_use_of_folder(run_config({"training.seed=7"}), ""), InputError) << "another run";
}

using LostCheckpointsTest = RunTest;

TEST_F(LostCheckpointsTest, ARunBeginsAgainOnlyIfItsEventsSayThatItSavedNothing) {
  namespace fs = std::filesystem;
  const Config config = run_config();
  const fs::path log = config.logging.dir;
  fs::create_directories(log);
  std::ofstream(log / "config.yaml") << to_yaml(config);
  std::ofstream(log / "metrics.jsonl") << "{\"step\":14}\n{\"step\":15}\n{\"st";
  const auto expect_lost = [&] {
    expect_mentions(
        message_of<InputError>([&] { find_use_of_folder(config, ""); }),
        {"the run reached step 15", "no checkpoint is in " + config.checkpoint.dir, "checkpoint.resume=never"});
  };
  expect_lost();  // There is no events.jsonl.
  std::ofstream(log / "events.jsonl") << event_json({.kind = EventKind::kWarning, .step = 10, .text = "slow"}) << "\n";
  testing::internal::CaptureStdout();
  EXPECT_EQ(find_use_of_folder(config, ""), FolderUse::kContinue);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("the run reached step 15 and saved no checkpoint"),
            std::string::npos);
  std::ofstream(log / "events.jsonl", std::ios::app)
      << event_json({.kind = EventKind::kCheckpoint, .step = 10}) << "\n";
  expect_lost();
  EXPECT_EQ(find_use_of_folder(config, dir_ / "backup"), FolderUse::kContinue) << "a checkpoint from elsewhere";
  EXPECT_EQ(find_use_of_folder(run_config({"checkpoint.resume=never"}), ""), FolderUse::kSetAside);
}

}  // namespace
}  // namespace octavo
