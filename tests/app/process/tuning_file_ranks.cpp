// Tests that ranks that time the same matmuls with different results take those of the root.
#include <gtest/gtest.h>

#include <string>

#include "app/process/tuning_file.h"
#include "kernels/matmul/tuned_algorithms.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::tuning_file_ranks {
namespace {

TEST(TuningFileRanks, TakeWhatTheRootChose) {
  ProcessGroup& group = *ranks;
  for (const bool alike : {true, false}) {
    Stream stream = Stream::cpu();
    TuningFile file(stream, group, alike ? "a GPU" : "GPU " + std::to_string(group.rank()), "");
    auto& tuned = stream.state<TunedAlgorithms>();
    const std::string own = "fastest of rank " + std::to_string(group.rank());
    std::string algorithm;
    file.tune([&] {
      if (!tuned.deferring()) return;
      // The root does not have the second problem.
      for (const std::string problem : {"first", "second"}) {
        if (problem == "second" && group.is_root()) continue;
        tuned.defer([&tuned, &algorithm, own, problem] {
          if (tuned.find(problem) == nullptr) tuned.keep(problem, own);
          if (problem == "first") algorithm = *tuned.find(problem);
        });
      }
    });
    EXPECT_EQ(algorithm, alike ? "fastest of rank 0" : own);
    EXPECT_EQ(tuned.find("second") == nullptr ? own : *tuned.find("second"), own);
  }
}

}  // namespace
}  // namespace octavo::tuning_file_ranks
