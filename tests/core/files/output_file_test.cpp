#include "core/files/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr OutputKind kPage{"a page of this test", "<title>test</title>"};

TEST(OutputFile, ReplacesOnlyAFileOfItsKind) {
  const TempDir dir;
  const std::string path = dir / "page";
  for (const std::string& earlier : {std::string(), std::string("<html><title>test</title>")}) {
    write_file(path, earlier);
    write_output_file(path, kPage, "<title>test</title>new");
    EXPECT_EQ(read_whole_file(path), "<title>test</title>new");
  }
  fs::remove(path);
  write_output_file(path, kPage, "<title>test</title>");
  const std::string far_mark = std::string(1 << 16, ' ') + kPage.mark;
  for (const std::string& other : {std::string("{\"step\": 1}\n"), far_mark}) {
    write_file(path, other);
    expect_mentions(message_of<InputError>([&] { OutputFile(path, kPage); }), {path, "is not a page of this test"});
    expect_mentions(message_of<InputError>([&] { write_output_file(path, kPage, "new"); }), {path, "or a new name"});
    EXPECT_EQ(read_whole_file(path), other);
  }
}

TEST(OutputFile, RefusesWhatIsNotAFile) {
  const TempDir dir;
  write_file(dir / "page", kPage.mark);
  fs::create_symlink(dir / "page", dir / "link");
  fs::create_symlink(dir / "nothing", dir / "dangling");
  fs::create_symlink(dir / "loop", dir / "loop");
  fs::create_directory(dir / "folder");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "dangling", "loop", "folder", "fifo", "no/such/page", "page/page"}) {
    SCOPED_TRACE(name);
    expect_mentions(message_of<InputError>([&] { OutputFile(dir / name, kPage); }), {dir / name});
  }
  EXPECT_EQ(read_whole_file(dir / "page"), kPage.mark);
}

TEST(OutputFile, TogetherAllAreReplacedOrNone) {
  const TempDir dir;
  const auto contents = [&] {
    std::string all;
    for (const char* name : {"a", "b", "c"}) all += fs::exists(dir / name) ? read_whole_file(dir / name) : "-";
    return all + std::to_string(std::distance(fs::directory_iterator(fs::path(dir / "a").parent_path()), {}));
  };
  const auto replace = [&](const std::string& lost) {
    OutputFile a(dir / "a"), b(dir / "b"), c(dir / "c");
    for (OutputFile* file : {&a, &b, &c}) {
      file->write("new");
      file->finish();
    }
    if (!lost.empty()) fs::remove(dir / lost);
    rename_together(std::vector<OutputFile*>{&a, &b, &c});
  };
  write_file(dir / "a", "old");
  // File b does not exist before the first replacement.
  write_file(dir / "c", "old");
  for (const char* lost : {"a.tmp", "b.tmp", "c.tmp"}) {
    expect_mentions(message_of<Error>([&] { replace(lost); }), {lost, "cannot be renamed"});
    EXPECT_EQ(contents(), "old-old2") << lost;
  }
  replace("");
  EXPECT_EQ(contents(), "newnewnew3");
}

// A symbolic link at the temporary name is not followed, and a FIFO there does not block.
TEST(OutputFile, ReplacesWhatIsUnderTheTemporaryName) {
  const TempDir dir;
  write_file(dir / "precious", "precious");
  fs::create_symlink(dir / "precious", dir / "a.tmp");
  ASSERT_EQ(::mkfifo((dir / "b.tmp").c_str(), 0600), 0);
  write_file(dir / "c.tmp", "left by a crash");
  for (const char* name : {"a", "b", "c"}) {
    write_output_file(dir / name, "new");
    EXPECT_EQ(read_whole_file(dir / name), "new");
    EXPECT_FALSE(fs::is_symlink(dir / name));
  }
  EXPECT_EQ(read_whole_file(dir / "precious"), "precious");
}

}  // namespace
}  // namespace octavo
