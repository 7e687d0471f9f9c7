#include "core/files/file_identity.h"

#include <sys/stat.h>

#include <set>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

TEST(FileIdentity, NamesPathAndSize) {
  const TempDir dir;
  write_file(dir / "a", "abc");
  EXPECT_TRUE(file_identity(dir / "a").starts_with((dir / "a") + " of 3 bytes, xxh3 "));
  write_file(dir / "empty", "");
  EXPECT_TRUE(sampled_file_identity(dir / "empty").starts_with((dir / "empty") + " of 0 bytes, xxh3 "));
}

TEST(FileIdentity, ChangesWithEveryByte) {
  const TempDir dir;
  std::string content(300, 'x');
  std::set<std::string> seen;
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] = 'y';
    write_file(dir / "a", content);
    EXPECT_EQ(file_identity(dir / "a"), sampled_file_identity(dir / "a"));
    seen.insert(file_identity(dir / "a"));
  }
  EXPECT_EQ(seen.size(), content.size());
}

TEST(FileIdentity, SamplesReachBothEndsOfALargeFile) {
  const TempDir dir;
  const std::string path = dir / "large";
  const std::string whole((size_t{1} << 22) + 13, 'x');
  write_file(path, whole);
  const std::string identity = sampled_file_identity(path);
  for (const size_t at : {size_t{0}, size_t{4095}, whole.size() - 4096, whole.size() - 1}) {
    std::string changed = whole;
    changed[at] = 'y';
    write_file(path, changed);
    EXPECT_NE(sampled_file_identity(path), identity) << at;
  }
  write_file(path, whole + "x");
  EXPECT_NE(sampled_file_identity(path), identity);
  write_file(path, whole);
  EXPECT_EQ(sampled_file_identity(path), identity);
}

TEST(FileIdentity, OfTokenFiles) {
  const TempDir dir;
  write_file(dir / "t.bin", "tokens");
  const std::string tokens = token_file_identity(dir / "t");
  EXPECT_EQ(tokens, sampled_file_identity(dir / "t.bin")) << "without an index";
  write_file(dir / "t.idx", "index");
  const std::string both = file_identity(dir / "t.idx") + "; " + tokens;
  for (const char* name : {"t", "t.bin", "t.idx"}) EXPECT_EQ(token_file_identity(dir / name), both);
}

TEST(FileIdentity, RefusesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_THROW(file_identity(dir / "nowhere"), InputError);
  EXPECT_THROW(token_file_identity(dir / "nowhere"), InputError);
  EXPECT_THROW(file_identity(dir / ""), InputError);
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(sampled_file_identity(dir / "fifo"), InputError) << "opening a FIFO without a writer does not block";
}

}  // namespace
}  // namespace octavo
