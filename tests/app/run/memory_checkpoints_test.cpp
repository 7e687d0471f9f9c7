// Tests that a run resumes the state saved in memory if it is newer than the newest checkpoint on disk, and that the
// memory is freed at the end.
#include "app/run/memory_checkpoints.h"

#include <sys/stat.h>

#include <fstream>

#include "checkpoint/machine_memory.h"
#include "tests/app/train/run_fixture.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class MemoryCheckpointsTest : public RunTest {
 protected:
  void TearDown() override {
    if (const fs::path left = memory_directory(dir_ / "checkpoints"); !left.empty()) remove_private_directory(left);
    RunTest::TearDown();
  }
  Config config(bool in_memory = true) const {
    return run_config({fmt::format("checkpoint.in_memory={}", in_memory), "checkpoint.in_memory_every=2"});
  }
  static void save_on_disk(SavingProcess& run, int64_t step) {
    run.checkpoints.save(step, run.meta, run.pieces, false);
    run.checkpoints.finish();
  }
  static void save_in_memory(SavingProcess& run, int64_t step) {
    ASSERT_TRUE(run.memory_checkpoints.due(step));
    run.memory_checkpoints.save(step, run.meta, run.pieces, run.checkpoints);
    while (!run.memory_checkpoints.due(step)) run.memory_checkpoints.poll();
  }
  static void start(SavingProcess& run) {
    run.memory_checkpoints.prepare(run.pieces, {});
    run.memory_checkpoints.begin();
  }
  // Leaves a checkpoint of step 2 on disk and one of step 4 in memory, like a run that was killed.
  void leave_step_4() {
    SavingProcess killed(config());
    start(killed);
    save_on_disk(killed, 2);
    save_in_memory(killed, 4);
  }
};

TEST_F(MemoryCheckpointsTest, IsResumedWithItsFiles) {
  {
    SavingProcess killed(config());
    killed.memory_checkpoints.prepare(killed.pieces, {{"tokenizer.json", "{}"}});
    killed.memory_checkpoints.begin();
    EXPECT_FALSE(killed.memory_checkpoints.due(3));
    save_in_memory(killed, 4);
  }
  fs::path resumed;
  {
    SavingProcess again(config());
    std::optional<Checkpoint> found = again.memory_checkpoints.open(again.checkpoints.newest(), again.needed);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step(), 4);
    EXPECT_EQ(found->read_file(found->files().at(0)), "{}");
    resumed = found->path();
    start(again);
    save_in_memory(again, 6);
  }
  EXPECT_FALSE(fs::exists(resumed)) << "the newer checkpoint in memory replaces this one";
}

TEST_F(MemoryCheckpointsTest, BelongsToTheNewestOnDisk) {
  leave_step_4();
  SavingProcess again(config());
  EXPECT_FALSE(again.memory_checkpoints.open(std::nullopt, again.needed)) << "a checkpoint is on disk";
  EXPECT_EQ(again.memory_checkpoints.open(again.checkpoints.newest(), again.needed)->step(), 4);
  save_on_disk(again, 3);
  EXPECT_FALSE(again.memory_checkpoints.open(again.checkpoints.newest(), again.needed))
      << "another checkpoint is the newest on disk";
}

TEST_F(MemoryCheckpointsTest, BelongsToACheckpointThatWasBeingWritten) {
  {
    SavingProcess killed(config());
    start(killed);
    killed.checkpoints.save(2, killed.meta, killed.pieces, false);
    save_in_memory(killed, 4);
    killed.checkpoints.finish();
  }
  SavingProcess again(config());
  EXPECT_EQ(again.memory_checkpoints.open(again.checkpoints.newest(), again.needed)->step(), 4);
}

TEST_F(MemoryCheckpointsTest, IsDiscardedByARollback) {
  {
    SavingProcess run(config());
    start(run);
    save_on_disk(run, 2);
    save_in_memory(run, 6);
    run.memory_checkpoints.discard();
    EXPECT_TRUE(run.memory_checkpoints.due(4)) << "the run saves again";
  }
  {
    SavingProcess killed(config());
    EXPECT_FALSE(killed.memory_checkpoints.open(killed.checkpoints.newest(), killed.needed));
  }
}

TEST_F(MemoryCheckpointsTest, ADamagedOneIsNamedAndLeft) {
  const auto replace_by_fifo = [](const fs::path& file) {
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  };
  const std::vector<std::pair<const char*, std::function<void(const fs::path&)>>> damages = {
      {"rank_00000.safetensors",
       [](const fs::path& file) {
         std::fstream(file, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x');
       }},
      {"rank_00000.safetensors", [](const fs::path& file) { fs::resize_file(file, 5000); }},
      {"rank_00000.safetensors", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) + 4096); }},
      {"rank_00000.safetensors", replace_by_fifo},
      {"rank_00000.safetensors", [](const fs::path& file) { fs::remove(file); }},
      {"tokenizer.json", [](const fs::path& file) { fs::resize_file(file, 1); }},
      {"tokenizer.json", [](const fs::path& file) { std::fstream(file, std::ios::in | std::ios::out).put('x'); }},
      {"manifest.json", [](const fs::path& file) { fs::resize_file(file, 100); }},
      {"manifest.json", [](const fs::path& file) { fs::remove(file); }},
      {"manifest.json", replace_by_fifo}};
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    fs::remove_all(dir_ / "checkpoints");
    {
      SavingProcess killed(config());
      killed.memory_checkpoints.prepare(killed.pieces, {{"tokenizer.json", "{}"}});
      killed.memory_checkpoints.begin();
      save_in_memory(killed, 4);
    }
    const fs::path directory = memory_directory(dir_ / "checkpoints") / "step_00000004";
    damages[i].second(directory / damages[i].first);
    testing::internal::CaptureStdout();
    {
      SavingProcess again(config());
      EXPECT_FALSE(again.memory_checkpoints.open(again.checkpoints.newest(), again.needed));
      start(again);
    }
    const std::string log = testing::internal::GetCapturedStdout();
    EXPECT_NE(log.find(directory.string()), std::string::npos) << log;
    EXPECT_FALSE(fs::exists(directory)) << "a checkpoint in memory that is not resumed is freed";
  }
}

// A run that began with the checkpoint of another run, and was killed before it had its own on disk.
TEST_F(MemoryCheckpointsTest, IsResumedByARunThatBeganAtAPath) {
  const std::string path = dir_ / "other/step_00000002";
  {
    SavingProcess other(run_config({fmt::format("checkpoint.dir={}/other", dir_.string())}));
    save_on_disk(other, 2);
  }
  const auto of_run = [&](const std::string& beginning) {
    Config began = config();
    began.checkpoint.resume = beginning;
    return began;
  };
  {
    SavingProcess killed(of_run(path));
    killed.meta["config"] = to_json(killed.config);
    ASSERT_TRUE(killed.checkpoints.open(killed.needed));
    start(killed);
    save_in_memory(killed, 4);
  }
  {
    SavingProcess again(of_run(path));
    EXPECT_EQ(again.memory_checkpoints.open(again.checkpoints.newest(), again.needed)->step(), 4);
  }
  fs::copy(dir_ / "other", dir_ / "copy", fs::copy_options::recursive);
  SavingProcess elsewhere(of_run(dir_ / "copy/step_00000002"));
  EXPECT_FALSE(elsewhere.memory_checkpoints.open(elsewhere.checkpoints.newest(), elsewhere.needed));
}

TEST_F(MemoryCheckpointsTest, IsFreedAtTheEnd) {
  SavingProcess run(config());
  start(run);
  save_in_memory(run, 4);
  const fs::path directory = memory_directory(dir_ / "checkpoints");
  EXPECT_TRUE(fs::exists(directory));
  run.memory_checkpoints.free();
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_EQ(memory_directory(dir_ / "checkpoints"), "");
  EXPECT_FALSE(run.memory_checkpoints.due(4));
}

TEST_F(MemoryCheckpointsTest, IsFreedByARunThatDoesNotUseMemory) {
  leave_step_4();
  const fs::path directory = memory_directory(dir_ / "checkpoints");
  SavingProcess run(config(false));
  EXPECT_FALSE(run.memory_checkpoints.open(run.checkpoints.newest(), run.needed));
  start(run);
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_FALSE(run.memory_checkpoints.due(4));
}

}  // namespace
}  // namespace octavo
