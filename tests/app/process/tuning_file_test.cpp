// Tests that the file of chosen algorithms is written and read, and that a run continues without it.
#include "app/process/tuning_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/matmul/tuned_algorithms.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class TuningFileTest : public ::testing::Test {
 protected:
  std::string path() const { return (directory_ / "cache/octavo/algorithms.json"); }

  // Returns the number of choices after a run that loads the file and times `timed` more problems.
  int64_t run(int64_t timed, const std::string& on = "a GPU") {
    Stream stream = Stream::cpu();
    TuningFile file(stream, group_, on, path());
    auto& tuned = stream.state<TunedAlgorithms>();
    for (int64_t i = 0; i < timed; ++i) tuned.keep("problem " + std::to_string(tuned.size()), "fastest");
    return tuned.size();
  }

  TempDir directory_;
  ProcessGroup group_;
};

TEST_F(TuningFileTest, KeepsTimedChoicesForTheNextRun) {
  EXPECT_EQ(run(2), 2);
  EXPECT_EQ(run(3), 5);
  EXPECT_EQ(run(0), 5);
  EXPECT_EQ(run(0, "another GPU"), 0);
  EXPECT_EQ(run(0), 5) << "a run that times nothing writes nothing";
}

TEST_F(TuningFileTest, TimesAfterTheWorkAndRepeatsItWithTheChoices) {
  std::vector<std::string> done;
  for (int run = 0; run < 2; ++run) {
    Stream stream = Stream::cpu();
    TuningFile file(stream, group_, "a GPU", path());
    auto& tuned = stream.state<TunedAlgorithms>();
    // The algorithm of a matmul plan, chosen as in matmul_cublaslt.cpp.
    std::string algorithm;
    const auto choose = [&] {
      if (const std::string* known = tuned.find("problem")) {
        algorithm = *known;
      } else if (tuned.deferring()) {
        algorithm = "first proposal";
      } else {
        tuned.keep("problem", algorithm = "fastest");
      }
    };
    file.tune([&] {
      if (algorithm.empty()) {
        choose();
        if (algorithm == "first proposal") tuned.defer(choose);
      }
      done.push_back(algorithm);
    });
    EXPECT_FALSE(tuned.deferring());
    EXPECT_EQ(tuned.num_deferred(), 0);
  }
  EXPECT_EQ(done, (std::vector<std::string>{"first proposal", "fastest", "fastest"}));
}

TEST_F(TuningFileTest, ContinuesWithoutADamagedFile) {
  run(2);
  std::ofstream(path()) << "{\"on\": \"a G";
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(run(0), 1);
}

TEST_F(TuningFileTest, ContinuesIfItCannotBeWritten) {
  std::ofstream((directory_ / "cache")) << "no folder";
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(run(0), 0);
}

TEST_F(TuningFileTest, ContinuesIfItCannotBeRead) {
  // The link points to itself. A folder without permission would not stop root.
  fs::create_symlink("cache", (directory_ / "cache"));
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(run(0), 0);
}

TEST_F(TuningFileTest, KeepsNoneWithoutAPath) {
  Stream stream = Stream::cpu();
  TuningFile file(stream, group_, "a GPU", "");
  stream.state<TunedAlgorithms>().keep("problem", "fastest");
  file.keep();
  EXPECT_FALSE(fs::exists((directory_ / "cache")));
}

TEST(TuningPath, IsInTheFolderOfCaches) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string before = cache != nullptr ? cache : "";
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/some/cache", 1), 0);
  EXPECT_EQ(tuning_path("NVIDIA H200, cuDNN 9.14.0"), "/some/cache/octavo/algorithms_NVIDIA_H200__cuDNN_9.14.0.json");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
  EXPECT_NE(tuning_path("a GPU").substr(0, 3), "not");
  cache != nullptr ? setenv("XDG_CACHE_HOME", before.c_str(), 1) : unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace octavo
