// Tests of checkpoint directories: locks, which checkpoints are kept or set aside, and what counts as damage.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <random>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/directory_lock.h"
#include "core/files/input_file.h"
#include "core/files/parallel_write.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace octavo {
namespace {

using std::chrono::milliseconds;

class DirectoryLockTest : public testing::Test {
 protected:
  std::string refusal(DirectoryUse use = kCheckpointDirectory) const {
    return input_error_of([&] { const DirectoryLock lock(path_, use, milliseconds(200)); });
  }
  TempDir dir_;
  fs::path path_ = dir_ / "";
};

TEST_F(DirectoryLockTest, ASecondOneIsRefusedByName) {
  {
    const DirectoryLock lock(path_, kCheckpointDirectory);
    expect_mentions(refusal(), {fmt::format("in use by another run, process {} on ", ::getpid())});
  }
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fs::is_empty(path_)) << "left over";
}

// Locks of different uses do not conflict, so that logging.dir and checkpoint.dir may be one directory.
TEST_F(DirectoryLockTest, DoesNotConflictWithAnotherUse) {
  const DirectoryLock lock(path_, kCheckpointDirectory);
  EXPECT_EQ(refusal(kLoggingDirectory), "");
  const DirectoryLock log(path_, kLoggingDirectory);
  const std::string sentence = refusal(kLoggingDirectory);
  EXPECT_TRUE(sentence.starts_with(fmt::format("logging.dir {}: is in use by another run", path_.string())))
      << sentence;
}

TEST_F(DirectoryLockTest, EndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DirectoryLock lock(path_, kCheckpointDirectory);
    char byte = 1;
    static_cast<void>(!::write(ready[1], &byte, 1));
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  expect_mentions(refusal(), {fmt::format("process {} on", child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(dir_ / "lock"));
  EXPECT_EQ(refusal(), "");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(DirectoryLockTest, IsTakenAgainWhereItWasRemoved) {
  DirectoryLock lock(path_, kCheckpointDirectory);
  fs::remove(dir_ / "lock");
  lock.renew();
  EXPECT_NE(refusal(), "");
  fs::remove(dir_ / "lock");
  {
    const DirectoryLock other(path_, kCheckpointDirectory);
    EXPECT_THROW(lock.renew(), Error);
  }
  lock.renew();
  EXPECT_NE(refusal(), "");
}

TEST_F(CheckpointTest, KeepsEveryNth) {
  State state(30);
  CheckpointWriter writer({.dir = root(), .keep = 1, .async = true, .keep_every = 3}, group_, stream_);
  for (int64_t step = 1; step <= 8; ++step) writer.save(step, small_model(), {}, state.tensors());
  writer.finish();
  writer.wait_for_removals();
  EXPECT_EQ(listing(), (std::vector<std::string>{"step_00000003", "step_00000006", "step_00000008"}));
}

TEST_F(CheckpointTest, SaysWhatIsDamageAndWhatIsNot) {
  State state(31);
  const auto outcome = [&] {
    try {
      Checkpoint(step_path(1)).verify();
    } catch (const DamagedCheckpoint&) {
      return "damaged";
    } catch (const InputError&) {
      return "refused";
    }
    return "intact";
  };
  const auto after = [&](const std::function<void()>& change) {
    fs::remove_all(step_path(1));
    save(1, state);
    change();
    return std::string(outcome());
  };
  const auto replace = [&](const char* from, const char* to) {
    std::string text = read_input_file(step_path(1) / kManifestName);
    text.replace(text.find(from), std::string_view(from).size(), to);
    write_file((step_path(1) / kManifestName).string(), text);
  };
  const auto write_manifest_of_step = [&](int64_t step) {
    const std::string path = (step_path(1) / kManifestName).string();
    CheckpointManifest manifest = manifest_from_text(read_input_file(path), path);
    manifest.step = step;
    write_file(path, manifest_to_text(manifest));
  };
  EXPECT_EQ(after([] {}), "intact");
  EXPECT_EQ(after([&] { fs::resize_file(shard_path(1), 100); }), "damaged");
  EXPECT_EQ(after([&] { fs::remove(shard_path(1)); }), "damaged");
  EXPECT_EQ(after([&] { fs::resize_file(step_path(1) / kManifestName, 100); }), "damaged");
  EXPECT_EQ(after([&] { fs::resize_file(step_path(1) / kManifestName, 0); }), "damaged");
  EXPECT_EQ(after([&] { replace("\"step\": 1", "\"step\": 3"); }), "damaged");
  EXPECT_EQ(after([&] { replace("\"version\": 1", "\"version\": 3"); }), "damaged");
  EXPECT_EQ(after([&] { write_manifest_of_step(3); }), "damaged");
  EXPECT_EQ(after([&] {
              fs::remove(shard_path(1));
              fs::create_symlink("/nowhere", shard_path(1));
            }),
            "refused");
  EXPECT_EQ(after([&] {
              fs::remove(shard_path(1));
              fs::create_symlink(shard_path(1).filename(), shard_path(1));
            }),
            "refused");
}

TEST_F(CheckpointTest, SetsAsideUnderAFreeName) {
  State state(32);
  for (const char* name : {"damaged_step_00000001", "damaged_step_00000001_2", "damaged_step_00000001_3"}) {
    save(1, state);
    EXPECT_EQ(set_aside_directory(step_path(1), kDamagedPrefix).filename(), name);
  }
  EXPECT_EQ(Checkpoint::newest(root()), std::nullopt);
  for (const char* name : {"earlier", "earlier_2"}) {
    save(1, state);
    save(2, state);
    const fs::path earlier = move_to_earlier(root(), find_checkpoints(root()));
    EXPECT_EQ(earlier.filename(), name);
    EXPECT_EQ(Checkpoint::newest(earlier), earlier / step_directory_name(2));
  }
  EXPECT_EQ(Checkpoint::newest(root()), std::nullopt);
  EXPECT_TRUE(free_bytes(root()).value_or(0) > 0);
  EXPECT_EQ(free_bytes(dir_ / "nowhere"), std::nullopt);
}

// The file sizes are around multiples of pages and of blocks, and the parts have random lengths.
TEST(ParallelFilesTest, HaveWhatWasWritten) {
  const TempDir dir;
  std::mt19937 random(3);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{8} << 20,
                             (size_t{8} << 20) + 1, (size_t{40} << 20) + 777}) {
    std::string content(bytes, '\0');
    for (char& c : content) c = static_cast<char>(random());
    std::vector<std::span<const std::byte>> parts;
    const auto all = std::as_bytes(std::span(content));
    for (size_t begin = 0; begin < bytes;) {
      const size_t most = 1 + random() % (bytes / 3 + 1);
      const size_t count = std::min(most, bytes - begin);
      parts.push_back(all.subspan(begin, count));
      if (random() % 4 == 0) parts.push_back(all.subspan(begin, 0));
      begin += count;
    }
    const std::string path = dir / "file";
    write_file_in_parallel(path, parts);
    EXPECT_TRUE(read_input_file(path) == content) << bytes;
  }
  EXPECT_THROW(write_file_in_parallel(dir / "no/where", {}), Error);
}

}  // namespace
}  // namespace octavo
