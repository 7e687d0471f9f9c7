#include "data/tokens/fingerprint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

// Writes a sparse file of `bytes` zeros, which takes no disk space.
void write_zeros(const std::string& path, int64_t bytes) {
  write_file(path, "");
  std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
}

TEST(Fingerprint, DependsOnTheFilesButNotOnTheirPaths) {
  const TempDir dir;
  write_tokens(dir / "a", counting_documents({5, 3}));
  write_tokens(dir / "b", counting_documents({4}, 90));
  write_tokens(dir / "else/where/x", counting_documents({5, 3}));
  write_tokens(dir / "else/y", counting_documents({4}, 90));
  const std::string fingerprint = fingerprint_of({dir / "a", dir / "b"});
  EXPECT_EQ(fingerprint.size(), 16u);
  EXPECT_EQ(fingerprint_of({dir / "else/where/x.idx", dir / "else/y.bin"}), fingerprint);
  EXPECT_NE(fingerprint_of({dir / "b", dir / "a"}), fingerprint);
  EXPECT_NE(fingerprint_of({dir / "a"}), fingerprint);
  EXPECT_THROW(fingerprint_of({dir / "a", dir / "nowhere"}), InputError);
}

TEST(Fingerprint, EveryByteOfASmallCorpusCounts) {
  const TempDir dir;
  write_tokens(dir / "a", counting_documents({5, 3, 0, 4}), TokenDtype::kU16);
  write_tokens(dir / "b", counting_documents({2}), TokenDtype::kU16);
  std::set<std::string> seen{fingerprint_of({dir / "a", dir / "b"})};
  for (const char* name : {"a.idx", "a.bin", "b.bin"}) {
    const std::string content = read_whole_file(dir / name);
    for (size_t i = 0; i < content.size(); ++i) {
      std::string changed = content;
      changed[i] = static_cast<char>(changed[i] ^ 1);
      write_file(dir / name, changed);
      EXPECT_TRUE(seen.insert(fingerprint_of({dir / "a", dir / "b"})).second) << name << " byte " << i;
    }
    write_file(dir / name, content);
  }
}

// The fingerprint differs if equal tokens are divided into other documents, or equal bytes into other files.
TEST(Fingerprint, WhereDocumentsAndFilesEndCounts) {
  const TempDir dir;
  write_tokens(dir / "a", counting_documents({5, 3}));
  write_tokens(dir / "b", counting_documents({3, 5}));
  EXPECT_NE(fingerprint_of({dir / "a"}), fingerprint_of({dir / "b"}));
  write_file(dir / "c1.bin", "abc");
  write_file(dir / "c2.bin", "de");
  write_file(dir / "d1.bin", "ab");
  write_file(dir / "d2.bin", "cde");
  EXPECT_NE(fingerprint_of({dir / "c1", dir / "c2"}), fingerprint_of({dir / "d1", dir / "d2"}));
}

TEST(Fingerprint, ReadsSamplesOfALargeCorpus) {
  const TempDir dir;
  // The corpus has three sparse token files of 0.8 terabytes in total, and large indexes.
  constexpr int64_t kBytes = (int64_t{1} << 38) + 12345;
  std::vector<std::string> paths;
  for (const char* name : {"a", "b", "c"}) {
    write_zeros(dir / (std::string(name) + ".bin"), kBytes);
    write_zeros(dir / (std::string(name) + ".idx"), kFingerprintBytes / 2);
    paths.push_back(dir / name);
  }
  std::set<std::string> seen{fingerprint_of(paths)};
  const auto expect_seen = [&](const std::string& path, int64_t offset, int64_t bytes) {
    overwrite(path, offset, std::string(static_cast<size_t>(bytes), 'x'));
    EXPECT_TRUE(seen.insert(fingerprint_of(paths)).second) << path << " at " << offset;
  };
  expect_seen(dir / "a.bin", 0, 1);
  expect_seen(dir / "c.bin", kBytes - 1, 1);
  expect_seen(dir / "a.idx", 0, 1);
  expect_seen(dir / "c.idx", kFingerprintBytes / 2 - 1, 1);
  // The changed range is longer than the distance between two blocks that are read.
  expect_seen(dir / "b.idx", 1'000'000, kFingerprintBytes * 3 / 2 / 255 + 1);
  std::filesystem::resize_file(dir / "b.bin", kBytes + 1);
  EXPECT_TRUE(seen.insert(fingerprint_of(paths)).second) << "the file is one byte longer";
}

TEST(Fingerprint, ReadsFewOfManyFiles) {
  const TempDir dir;
  std::vector<std::string> paths;
  for (int i = 0; i < 2000; ++i) {
    paths.push_back(dir / std::to_string(i));
    write_zeros(paths.back() + ".bin", kFingerprintBytes / 100);
  }
  const std::string before = fingerprint_of(paths);
  overwrite(paths[1000] + ".bin", 0, "x");
  overwrite(paths[1001] + ".bin", 0, std::string(kFingerprintBytes / 100, 'x'));
  EXPECT_EQ(fingerprint_of(paths), before) << "the changed bytes are between two sampled blocks";
  for (size_t i = 1000; i < 1010; ++i) overwrite(paths[i] + ".bin", 0, std::string(kFingerprintBytes / 100, 'x'));
  EXPECT_NE(fingerprint_of(paths), before);
}

// A corpus that is read completely needs no times. The time of a file is that of its tokens or of its index.
TEST(Fingerprint, KnowsWhenTheFilesThatItSamplesWereModified) {
  using Clock = std::filesystem::file_time_type;
  const TempDir dir;
  write_tokens(dir / "small", counting_documents({5, 3}));
  EXPECT_TRUE(sampled_files({dir / "small"}).empty());
  write_zeros(dir / "large.bin", kFingerprintBytes);
  EXPECT_TRUE(sampled_files({dir / "large"}).empty());
  for (const char* large : {"large.bin", "large.idx"}) {
    write_zeros(dir / "large.bin", 1);
    write_zeros(dir / "large.idx", 1);
    write_zeros(dir / large, kFingerprintBytes + 1);
    for (const char* modified : {"large.bin", "large.idx"}) {
      const auto before = sampled_files({dir / "small", dir / "large.idx"});
      ASSERT_EQ(before.size(), 2u);
      EXPECT_EQ(before[1].path, dir / "large.bin");
      std::filesystem::last_write_time(dir / modified, Clock::clock::now() + std::chrono::seconds(50));
      const auto after = sampled_files({dir / "small", dir / "large.idx"});
      EXPECT_EQ(after[0].modified_ns, before[0].modified_ns);
      EXPECT_GT(after[1].modified_ns, before[1].modified_ns) << modified;
      std::filesystem::last_write_time(dir / modified, Clock::clock::now() - std::chrono::hours(1));
    }
  }
  // Times beyond the range of the number do not wrap.
  std::filesystem::last_write_time(dir / "large.bin", Clock::min());
  std::filesystem::last_write_time(dir / "large.idx", Clock::min());
  EXPECT_GE(sampled_files({dir / "large"})[0].modified_ns, 0);
}

}  // namespace
}  // namespace octavo
