#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/data/test_files.h"
#include "tests/no_threads.h"

namespace octavo {
namespace {

TEST_F(CheckpointTest, ReadsWhatWasSaved) {
  for (const bool async : {false, true}) {
    State state(1);
    save(5, state, async);
    Checkpoint checkpoint(step_path(5));
    EXPECT_EQ(checkpoint.step(), 5);
    EXPECT_EQ(checkpoint.ranks(), 1);
    EXPECT_EQ(checkpoint.meta().at("tokens"), 50);
    EXPECT_EQ(checkpoint.meta().at("loader"), (nlohmann::json{1, 2}));
    EXPECT_EQ(checkpoint.model_config(), small_model());
    EXPECT_EQ(checkpoint.tensors().size(), 3u);
    EXPECT_TRUE(checkpoint.has("exp_avg.a.weight"));
    EXPECT_FALSE(checkpoint.has("b.weight"));
    expect_holds(checkpoint, state);
    checkpoint.verify();
    EXPECT_EQ(listing(), std::vector<std::string>{"step_00000005"});
  }
}

TEST_F(CheckpointTest, OpensAManifestThatIsAtHand) {
  State state(1);
  save(5, state);
  const ManifestFile manifest = read_manifest(step_path(5));
  fs::remove(step_path(5) / kManifestName);
  Checkpoint checkpoint(manifest);
  EXPECT_EQ(checkpoint.path(), step_path(5));
  expect_holds(checkpoint, state);
  EXPECT_THROW(Checkpoint{step_path(5)}, InputError);
  EXPECT_THROW(Checkpoint({step_path(5), manifest.text.substr(0, 100)}), DamagedCheckpoint);
}

// The mark changes with the checksums in the manifest and with the length of the manifest.
TEST_F(CheckpointTest, AMarkTellsManifestsApart) {
  State state(1), other(2);
  save(5, state);
  const fs::path path = step_path(5) / kManifestName;
  const ManifestFile manifest = read_manifest(step_path(5));
  EXPECT_EQ(manifest_mark(step_path(5)), manifest_mark(manifest));
  write_file(path, " " + manifest.text);
  EXPECT_NE(manifest_mark(step_path(5)), manifest_mark(manifest));
  std::string damaged = manifest.text;
  damaged[10] ^= 1;
  write_file(path, damaged);
  EXPECT_EQ(manifest_mark(step_path(5)), manifest_mark(manifest)) << "the mark is read from the end of the manifest";
  write_file(path, "{}");
  EXPECT_NE(manifest_mark(step_path(5)), manifest_mark(manifest));
  write_file(path, "");
  EXPECT_EQ(manifest_mark(step_path(5)), manifest_mark({step_path(5), ""}));
  fs::remove(path);
  EXPECT_THROW(manifest_mark(step_path(5)), InputError);
  save(5, other);
  EXPECT_EQ(read_manifest(step_path(5)).text.size(), manifest.text.size());
  EXPECT_NE(manifest_mark(step_path(5)), manifest_mark(manifest));
}

TEST_F(CheckpointTest, ConvertsRangesToTheDtypeAskedFor) {
  State state(2);
  save(1, state);
  Checkpoint checkpoint(root());
  std::vector<BFloat16> halves(10);
  checkpoint.read("a.weight", {}, 20, 30, Tensor(halves.data(), DType::kBFloat16, {10}));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(halves[i].bits, BFloat16(state.weight[20 + i]).bits);
  checkpoint.read("exp_avg_sq.a.weight", {}, 3, 13, Tensor(halves.data(), DType::kBFloat16, {10}));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(halves[i].bits, state.exp_avg_sq[3 + i].bits);
  std::vector<int32_t> integers(10);
  EXPECT_THROW(checkpoint.read("a.weight", {}, 0, 10, Tensor(integers.data(), DType::kInt32, {10})), Error);
  EXPECT_THROW(checkpoint.read("a.weight", {}, 30, 36, std::vector<float>(6).data()), Error);
  EXPECT_THROW(checkpoint.read("b.weight", {}, 0, 1, std::vector<float>(1).data()), InputError);
}

TEST_F(CheckpointTest, DividesByBytesWithoutOverlap) {
  State state(4);
  for (const int count : {1, 2, 3, 7, 50, 400}) {
    std::map<std::string, int64_t> next;
    int64_t total = 0, largest = 0;
    for (int part = 0; part < count; ++part) {
      int64_t bytes = 0;
      for (const CheckpointTensor& piece : divide_tensors(state.tensors(), part, count)) {
        EXPECT_EQ(piece.begin, next[piece.name]);
        EXPECT_EQ(piece.data.numel(), piece.end - piece.begin);
        next[piece.name] = piece.end;
        bytes += piece.data.bytes();
      }
      largest = std::max(largest, bytes);
      total += bytes;
    }
    EXPECT_EQ(total, 35 * 10);
    EXPECT_LE(largest, 35 * 10 / count + 8);
    for (const CheckpointTensor& tensor : state.tensors()) EXPECT_EQ(next[tensor.name], 35);
  }
}

TEST_F(CheckpointTest, RefusesTensorsThatAreNotCovered) {
  State state(5);
  std::vector<CheckpointTensor> twice = state.tensors();
  twice.push_back({"a.weight", {7, 5}, 0, 10, Tensor(state.weight.data(), DType::kFloat32, {10})});
  for (const bool async : {false, true}) {
    CheckpointWriter writer({root(), 0, async}, group_, stream_);
    for (const auto& wrong : {divide_tensors(state.tensors(), 0, 2), twice}) {
      const auto save_wrong = [&] {
        writer.save(1, small_model(), {}, wrong);
        writer.finish();
      };
      EXPECT_THROW(save_wrong(), Error);
      EXPECT_TRUE(listing().empty());
    }
  }
}

TEST_F(CheckpointTest, SnapshotsBeforeTheWritingThreadRuns) {
  State state(6);
  const State before = state;
  CheckpointWriter writer({root(), 0, true}, group_, stream_);
  writer.reserve(CheckpointWriter::staging_bytes(state.tensors()));
  writer.save(1, small_model(), {}, state.tensors());
  std::fill(state.weight.begin(), state.weight.end(), 0.0f);
  EXPECT_TRUE(writer.pending());
  while (!writer.poll()) continue;
  EXPECT_FALSE(writer.pending());
  EXPECT_TRUE(writer.poll());
  Checkpoint checkpoint(root());
  expect_holds(checkpoint, before);
}

TEST_F(CheckpointTest, CompletesAPendingSaveBeforeTheNext) {
  State first(7), second(8);
  CheckpointWriter writer({root(), 0, true}, group_, stream_);
  writer.save(1, small_model(), {}, first.tensors());
  writer.save(2, small_model(), {}, second.tensors());
  EXPECT_EQ(writer.last_saved(), step_path(1));
  writer.finish();
  Checkpoint one(step_path(1)), two(step_path(2));
  expect_holds(one, first);
  expect_holds(two, second);
}

TEST_F(CheckpointTest, KeepsTheNewestUpToTheStepSaved) {
  State state(9);
  save(100, state);
  for (int64_t step = 1; step <= 4; ++step) save(step, state, true, 2);
  EXPECT_EQ(listing(), (std::vector<std::string>{"step_00000003", "step_00000004", "step_00000100"}));
  EXPECT_EQ(Checkpoint::newest(root()), step_path(100));
}

TEST_F(CheckpointTest, ReplacesTheCheckpointOfTheSameStep) {
  State first(10), second(11);
  save(3, first);
  save(3, second, true);
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000003"});
  Checkpoint checkpoint(root());
  expect_holds(checkpoint, second);
}

TEST_F(CheckpointTest, ClearsAwayWhatCrashedRunsLeft) {
  State state(12);
  save(4, state);
  write_file((fs::path(root()) / ".tmp_step_00000005" / shard_name(0)).string(), "half");
  write_file((fs::path(root()) / (std::string(kProbePrefix) + "abc123")).string(), "");
  fs::create_directories(fs::path(root()) / "notes");
  EXPECT_EQ(Checkpoint::newest(root()), step_path(4));
  CheckpointWriter writer({root(), 0, false}, group_, stream_);
  writer.wait_for_removals();
  EXPECT_EQ(listing(), (std::vector<std::string>{"notes", "step_00000004"}));
}

TEST_F(CheckpointTest, PutsAnInterruptedReplacementBack) {
  State state(13);
  save(4, state);
  fs::rename(step_path(4), fs::path(root()) / ".old_step_00000004");
  fs::create_directories(fs::path(root()) / ".tmp_step_00000004");
  EXPECT_EQ(Checkpoint(root()).step(), 4);
  CheckpointWriter writer({root(), 0, false}, group_, stream_);
  writer.wait_for_removals();
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000004"});
  Checkpoint checkpoint(root());
  expect_holds(checkpoint, state);
}

TEST_F(CheckpointTest, IgnoresDirectoriesWithoutAManifest) {
  State state(14);
  EXPECT_EQ(Checkpoint::newest(root()), std::nullopt);
  save(1, state);
  save(2, state);
  fs::remove(step_path(2) / "manifest.json");
  EXPECT_EQ(Checkpoint(root()).step(), 1);
  expect_mentions(damage(step_path(2)), {step_path(2).string()});
}

// Resuming from an older checkpoint, or from none, would silently repeat training that is already done.
TEST_F(CheckpointTest, RefusesToSkipUnreadableCheckpoints) {
  State state(23);
  save(1, state);
  const auto expect_refused = [&](const fs::path& named) {
    for (const auto& look :
         std::vector<std::function<void()>>{[&] { Checkpoint::newest(root()); }, [&] { Checkpoint found(root()); },
                                            [&] {
                                              CheckpointWriter({root(), 0, false}, group_, stream_);
                                            }}) {
      expect_mentions(message_of<InputError>(look), {named.string()});
    }
  };
  // The first link points to itself, the second one to a path that does not exist.
  for (const char* target : {"step_00000002", "/nowhere"}) {
    fs::create_symlink(target, step_path(2));
    expect_refused(step_path(2));
    fs::remove(step_path(2));
  }
  const fs::path manifest = step_path(1) / kManifestName;
  fs::remove(manifest);
  fs::create_symlink(kManifestName, manifest);
  expect_refused(manifest);
  fs::remove(manifest);
  EXPECT_EQ(Checkpoint::newest(root()), std::nullopt);
  write_file(step_path(3).string(), "a file of such a name is no checkpoint");
  fs::create_symlink("link", fs::path(root()) / "link");  // A link whose name is not that of a checkpoint is ignored.
  EXPECT_EQ(Checkpoint::newest(root()), std::nullopt);
}

// A checkpoint that was set aside before a crash is kept if the path of its replacement cannot be read.
TEST_F(CheckpointTest, KeepsCheckpointsWhoseReplacementIsUnreadable) {
  State state(24);
  save(4, state);
  const fs::path aside = fs::path(root()) / ".old_step_00000004";
  fs::rename(step_path(4), aside);
  fs::create_symlink("step_00000004", step_path(4));
  EXPECT_THROW(CheckpointWriter({root(), 0, false}, group_, stream_), InputError);
  EXPECT_EQ(damage(aside), "");
}

TEST_F(CheckpointTest, HasAttachedFiles) {
  State state(26);
  CheckpointWriter writer({root(), 0, true}, group_, stream_);
  writer.attach({{"tokenizer.json", "{}"}, {"empty.txt", ""}});
  writer.save(1, small_model(), {}, state.tensors());
  writer.finish();
  writer.save(2, small_model(), {}, state.tensors());
  writer.finish();
  for (const int64_t step : {1, 2}) {
    Checkpoint checkpoint(step_path(step));
    checkpoint.verify();
    ASSERT_EQ(checkpoint.files().size(), 2u);
    EXPECT_EQ(checkpoint.files()[0].name, "tokenizer.json");
    EXPECT_EQ(checkpoint.read_file(checkpoint.files()[0]), "{}");
    EXPECT_EQ(checkpoint.read_file(checkpoint.files()[1]), "");
  }
  const std::string path = (step_path(1) / "tokenizer.json").string();
  write_file(path, "[]");
  expect_mentions(damage(step_path(1)), {path + ": is damaged"});
  write_file(dir_ / "elsewhere", "{}");
  fs::remove(path);
  expect_mentions(damage(step_path(1)), {path + ": is missing or not a regular file"});
  fs::create_symlink(dir_ / "elsewhere", path);
  expect_mentions(damage(step_path(1)), {path + ": is missing or not a regular file"});
}

TEST_F(CheckpointTest, DescribesItself) {
  State state(19);
  save(2, state);
  const nlohmann::json description = Checkpoint(root()).describe();
  EXPECT_EQ(description.at("step"), 2);
  EXPECT_EQ(description.at("tokens"), 20);
  EXPECT_EQ(description.at("ranks"), 1);
  EXPECT_EQ(description.at("parameters"), small_model().num_parameters());
  EXPECT_EQ(description.at("model").at("vocab_size"), 10);
  EXPECT_EQ(description.at("bytes"), fs::file_size(shard_path(2)));
  EXPECT_EQ(description.at("intact"), true);
}

TEST_F(CheckpointTest, SurvivesAFullDisk) {
  State first(20), second(21);
  for (const bool async : {false, true}) {
    save(1, first);
    CheckpointWriter writer({root(), 1, async}, group_, stream_);
    const auto save_second = [&] {
      writer.save(2, small_model(), {}, second.tensors());
      writer.finish();
    };
    {
      const FileSizeLimit limit(100);
      expect_mentions(message_of<Error>(save_second), {"rank_00000.safetensors", "File too large"});
    }
    EXPECT_EQ(listing(), std::vector<std::string>{"step_00000001"});
    EXPECT_FALSE(writer.pending());
    Checkpoint checkpoint(root());
    expect_holds(checkpoint, first);
    save_second();  // After the failure the writer still saves once there is space.
    writer.wait_for_removals();
    EXPECT_EQ(listing(), std::vector<std::string>{"step_00000002"});
    fs::remove_all(step_path(2));
  }
}

TEST_F(CheckpointTest, AbandonsAPendingSave) {
  State first(26), second(27), third(28);
  const auto stable_tensors = [](State& state) {
    std::vector<CheckpointTensor> tensors = state.tensors();
    for (CheckpointTensor& tensor : tensors) tensor.stable = true;
    return tensors;
  };
  CheckpointWriter writer({root(), 1, true}, group_, stream_);
  writer.save(1, small_model(), {}, stable_tensors(first));
  writer.finish();
  writer.save(2, small_model(), {}, stable_tensors(second));
  writer.abandon();
  EXPECT_FALSE(writer.pending());
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000001"});
  EXPECT_EQ(writer.last_saved(), step_path(1));
  writer.abandon();  // Nothing is pending.
  writer.save(3, small_model(), {}, stable_tensors(third));
  writer.finish();
  writer.wait_for_removals();
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000003"});
  Checkpoint checkpoint(root());
  expect_holds(checkpoint, third);
}

TEST_F(CheckpointTest, IsReadyWhenNothingHasToBeWaitedFor) {
  State state(29);
  CheckpointWriter writer({root(), 1, true}, group_, stream_);
  EXPECT_FALSE(writer.ready()) << "unknown before the first poll";
  writer.reserve(CheckpointWriter::staging_bytes(state.tensors()));
  const auto wait = [&] {
    while (!writer.ready()) writer.poll();
  };
  wait();
  writer.save(1, small_model(), {}, state.tensors());
  EXPECT_FALSE(writer.ready());
  wait();
  EXPECT_EQ(writer.last_saved(), step_path(1));
}

// If no thread can be started, the calling thread writes, computes checksums and removes old checkpoints.
TEST_F(CheckpointTest, SavesWithoutThreads) {
  State first(24), second(25);
  const NoThreads none;
  CheckpointWriter writer({root(), 1, true}, group_, stream_);
  writer.reserve(CheckpointWriter::staging_bytes(first.tensors()));
  writer.save(1, small_model(), {}, first.tensors());
  EXPECT_TRUE(writer.poll());
  writer.save(2, small_model(), {}, second.tensors());
  writer.finish();
  writer.wait_for_removals();
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000002"});
  Checkpoint checkpoint(root());
  checkpoint.verify();
  expect_holds(checkpoint, second);
}

TEST_F(CheckpointTest, SurvivesAFullDiskWhileTheManifestIsWritten) {
  State state(22);
  save(1, state);
  CheckpointWriter writer({root(), 1, true}, group_, stream_);
  writer.save(2, small_model(), {{"long", std::string(10000, 'x')}}, state.tensors());
  {
    const FileSizeLimit limit(5000);
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_EQ(listing(), std::vector<std::string>{"step_00000001"});
  EXPECT_EQ(damage(root()), "");
}

TEST_F(CheckpointTest, DoesNotWaitForADirectoryThatVanished) {
  State state(23);
  save(1, state);
  const std::string gone = dir_ / "gone";
  CheckpointWriter writer({root(), 1, true}, group_, stream_);
  writer.save(2, small_model(), {}, state.tensors());
  // The open descriptor of the shard stays valid after the rename. Only operations that use the path of the directory
  // fail.
  while (!fs::exists(fs::path(root()) / ".tmp_step_00000002" / shard_name(0))) continue;
  fs::rename(root(), gone);
  const auto begin = std::chrono::steady_clock::now();
  expect_mentions(message_of<Error>([&] { writer.finish(); }),
                  {".tmp_step_00000002: was removed while the checkpoint was being written"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_FALSE(fs::exists(root())) << "nothing is written where the file system was";
  fs::rename(gone, root());
  writer.save(2, small_model(), {}, state.tensors());
  writer.finish();
  EXPECT_EQ(writer.last_saved(), step_path(2));
}

TEST_F(CheckpointTest, RefusesAnImpossibleDirectory) {
  write_file(dir_ / "file", "x");
  EXPECT_THROW(CheckpointWriter({dir_ / "file", 1, true}, group_, stream_), InputError);
  EXPECT_THROW(CheckpointWriter({dir_ / "file/below", 1, true}, group_, stream_), InputError);
}

}  // namespace
}  // namespace octavo
