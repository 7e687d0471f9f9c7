// Tests which checkpoint on disk counts as the last one, also after failed saves.
#include "app/run/disk_checkpoints.h"

#include <filesystem>
#include <limits>
#include <optional>

#include "tests/app/train/run_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

constexpr rlim_t kFullDisk = 64;

class DiskCheckpointsTest : public RunTest, public testing::WithParamInterface<bool> {
 protected:
  Config config(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {fmt::format("checkpoint.async={}", GetParam()), "checkpoint.max_failed_saves=3"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return run_config(all);
  }
  static void save(SavingProcess& run, int64_t step, bool is_final = false) {
    run.checkpoints.save(step, run.meta, run.pieces, is_final);
    run.checkpoints.finish();
  }
};

TEST_P(DiskCheckpointsTest, TheLastOneIsTheLastThatIsComplete) {
  SavingProcess run(config());
  DiskCheckpoints& checkpoints = run.checkpoints;
  checkpoints.prepare(run.pieces, 0, 24);
  EXPECT_EQ(checkpoints.saved_step(), 0);
  EXPECT_EQ(checkpoints.last(), "none");
  checkpoints.save(2, run.meta, run.pieces, false);
  EXPECT_EQ(checkpoints.saved_step(), checkpoints.pending() ? 0 : 2);
  checkpoints.finish();
  EXPECT_EQ(checkpoints.saved_step(), 2);
  {
    const FileSizeLimit limit(kFullDisk);
    save(run, 4);
  }
  EXPECT_EQ(checkpoints.saved_step(), 2) << "the save of step 4 failed";
  EXPECT_EQ(checkpoints.last_path()->filename(), "step_00000002");
  EXPECT_EQ(checkpoints.open_last(run.needed)->step(), 2);
  save(run, 6);
  EXPECT_EQ(checkpoints.saved_step(), 6);
}

TEST_P(DiskCheckpointsTest, ARunEndsAfterTooManyFailuresInARow) {
  SavingProcess run(config());
  DiskCheckpoints& checkpoints = run.checkpoints;
  checkpoints.prepare(run.pieces, 0, 24);
  const auto fail = [&](int64_t step, bool is_final = false) {
    const FileSizeLimit limit(kFullDisk);
    save(run, step, is_final);
  };
  fail(1);
  fail(2);
  save(run, 3);
  fail(4);
  fail(5);
  expect_mentions(message_of<Error>([&] { fail(6); }), {"step 6 is not saved", "3 in a row failed", "step_00000003"});
}

TEST_P(DiskCheckpointsTest, AFinalSaveMustSucceed) {
  SavingProcess run(config());
  run.checkpoints.prepare(run.pieces, 0, 24);
  const FileSizeLimit limit(kFullDisk);
  expect_mentions(message_of<Error>([&] { save(run, 24, true); }), {"it is the final checkpoint", "is none"});
}

TEST_P(DiskCheckpointsTest, AResumedCheckpointIsTheLastOne) {
  {
    SavingProcess run(config());
    run.checkpoints.prepare(run.pieces, 0, 24);
    save(run, 2);
    save(run, 4);
  }
  std::filesystem::remove(dir_ / "checkpoints/step_00000004/rank_00000.safetensors");
  SavingProcess again(config());
  EXPECT_EQ(again.checkpoints.newest()->filename(), "step_00000004");
  EXPECT_EQ(again.checkpoints.open(again.needed)->step(), 2) << "step 4 is damaged";
  EXPECT_EQ(again.checkpoints.saved_step(), 2);
  EXPECT_EQ(again.checkpoints.last_path()->filename(), "step_00000002");
}

// Flips a bit of the last tensor of a shard.
void damage_shard(const std::string& checkpoint) {
  const std::string shard = checkpoint + "/rank_00000.safetensors";
  std::string content = read_whole_file(shard);
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file(shard, content);
}

TEST_P(DiskCheckpointsTest, TheNewestOneMayBeVerifiedWhenItIsLoaded) {
  {
    SavingProcess run(config());
    run.checkpoints.prepare(run.pieces, 0, 24);
    save(run, 2);
    save(run, 4);
  }
  const std::string older = dir_ / "checkpoints/step_00000002", newest = dir_ / "checkpoints/step_00000004";
  damage_shard(newest);
  {
    SavingProcess again(config());
    std::optional<Checkpoint> found = again.checkpoints.open(again.needed, false);
    EXPECT_EQ(found->step(), 4);
    EXPECT_THROW(load_state(*found, again.model.state(), again.runtime.stream()), DamagedCheckpoint);
  }
  EXPECT_TRUE(std::filesystem::exists(newest)) << "renamed before another checkpoint is known to be undamaged";
  damage_shard(older);
  std::filesystem::resize_file(newest + "/manifest.json", 10);
  SavingProcess again(config());
  expect_mentions(message_of<InputError>([&] { again.checkpoints.open(again.needed, false); }),
                  {"all 2 checkpoints are damaged"});
  EXPECT_TRUE(std::filesystem::exists(newest));
}

TEST_P(DiskCheckpointsTest, DamageTakesPrecedenceOverValuesThatAreNotFinite) {
  SavingProcess run(config());
  run.checkpoints.prepare(run.pieces, 0, 24);
  run.model.state().parameters.master().data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  save(run, 2);
  const auto load = [&] {
    Checkpoint checkpoint(dir_ / "checkpoints");
    load_state(checkpoint, run.model.state(), run.runtime.stream());
  };
  expect_mentions(message_of<InputError>(load), {"input_layernorm.weight is nan at [0], expected finite numbers"});
  damage_shard(dir_ / "checkpoints/step_00000002");
  EXPECT_THROW(load(), DamagedCheckpoint);
}

TEST(FinalSaveTest, ReplacesAPendingSaveThatNobodyNeeds) {
  EXPECT_TRUE(final_save_replaces(6, 0, true));
  EXPECT_TRUE(final_save_replaces(6, 4, true));
  EXPECT_FALSE(final_save_replaces(6, 3, true)) << "its checkpoint is never removed";
  EXPECT_FALSE(final_save_replaces(6, 0, false)) << "no other checkpoint is complete";
}

INSTANTIATE_TEST_SUITE_P(Saves, DiskCheckpointsTest, testing::Bool(),
                         [](const auto& async) { return async.param ? "InTheBackground" : "AtOnce"; });

}  // namespace
}  // namespace octavo
