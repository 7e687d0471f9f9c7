#include "checkpoint/machine_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "checkpoint/directory_lock.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class MemoryDirectoryTest : public testing::Test {
 protected:
  std::string refusal() const {
    return input_error_of([&] { make_private_directory(path_); });
  }
  void expect_refused(const std::string& reason) const {
    EXPECT_EQ(refusal().find(path_.string() + ": " + reason), 0u) << refusal();
    EXPECT_NE(refusal().find("remove memory_id of checkpoint.dir"), std::string::npos) << refusal();
    remove_private_directory(path_);
    EXPECT_EQ(fs::symlink_status(path_).type() == fs::file_type::not_found, false) << "it was removed";
  }

  TempDir dir_;
  fs::path checkpoints_ = dir_ / "";
  fs::path path_ = dir_ / "memory";
};

TEST_F(MemoryDirectoryTest, HasAUniqueName) {
  EXPECT_EQ(memory_directory(checkpoints_), "");
  const fs::path name = renew_memory_directory(checkpoints_);
  EXPECT_EQ(name.parent_path(), "/dev/shm");
  EXPECT_EQ(memory_directory(checkpoints_), name);
  EXPECT_NE(renew_memory_directory(checkpoints_), name);
  forget_memory_directory(checkpoints_);
  EXPECT_EQ(memory_directory(checkpoints_), "");
}

TEST_F(MemoryDirectoryTest, ACopiedRunFolderHasAnotherName) {
  const fs::path name = renew_memory_directory(checkpoints_);
  const fs::path copy = dir_ / "copy", moved = dir_ / "moved";
  fs::create_directory(copy);
  fs::create_directory(moved);
  fs::copy_file(checkpoints_ / kMemoryIdFile, copy / kMemoryIdFile);
  EXPECT_NE(memory_directory(copy), name);
  fs::rename(checkpoints_ / kMemoryIdFile, moved / kMemoryIdFile);
  EXPECT_EQ(memory_directory(moved), name);
}

TEST_F(MemoryDirectoryTest, AnInvalidNameIsRefused) {
  for (const char* id : {"", "../../home/user/checkpoints", "0123456789ABCDEF0123456789ABCDEF"}) {
    write_output_file((checkpoints_ / kMemoryIdFile).string(), id);
    EXPECT_THROW(memory_directory(checkpoints_), InputError) << id;
  }
}

TEST_F(MemoryDirectoryTest, IsOpenToItsUserAloneAndRemovedWithAllInIt) {
  const mode_t before = ::umask(0);
  make_private_directory(path_);
  ::umask(before);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_all);
  fs::create_directories(path_ / "step_00000001");
  make_private_directory(path_);
  EXPECT_TRUE(fs::exists(path_ / "step_00000001")) << "an existing directory is used unchanged";
  remove_private_directory(path_);
  EXPECT_FALSE(fs::exists(path_));
  remove_private_directory(path_);  // Removing a directory that does not exist is not an error.
}

TEST_F(MemoryDirectoryTest, AFileAndALinkAreRefusedAndNotFollowed) {
  write_output_file(path_.string(), "text");
  expect_refused("is not a directory");
  fs::remove(path_);
  const fs::path target = dir_ / "target";
  fs::create_directories(target / "step_00000001");
  fs::permissions(target, fs::perms::owner_all);
  fs::create_directory_symlink(target, path_);
  expect_refused("is not a directory");
  EXPECT_TRUE(fs::exists(target / "step_00000001"));
}

TEST_F(MemoryDirectoryTest, OneThatIsOpenToOthersIsRefused) {
  for (const fs::perms more : {fs::perms::group_read, fs::perms::others_write, fs::perms::others_exec}) {
    fs::create_directory(path_);
    fs::permissions(path_, fs::perms::owner_all | more);
    expect_refused("has mode 7");
    fs::remove(path_);
  }
}

TEST_F(MemoryDirectoryTest, OneOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give a directory away";
  fs::create_directory(path_);
  fs::permissions(path_, fs::perms::owner_all);
  ASSERT_EQ(::chown(path_.c_str(), 1001, 1001), 0);
  expect_refused("belongs to user 1001, expected user 0");
}

TEST_F(MemoryDirectoryTest, OneThatOthersMayReplaceIsRefused) {
  fs::permissions(dir_ / "", fs::perms::all);
  EXPECT_NE(refusal().find("other users may replace its contents"), std::string::npos) << refusal();
  fs::permissions(dir_ / "", fs::perms::all | fs::perms::sticky_bit);
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace octavo
