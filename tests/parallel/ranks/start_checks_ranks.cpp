// Tests of the checks that ranks do before they compute anything.
#include <cstdlib>
#include <optional>
#include <string>

#include "parallel/ranks/start_checks.h"
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::start_checks_ranks {
namespace {

// The tests set NCCL_HOSTID in the environment. The fixture restores it afterwards.
class StartChecks : public RanksTest {
 protected:
  void SetUp() override {
    if (const char* host = std::getenv("NCCL_HOSTID"); host != nullptr) before_ = host;
    unsetenv("NCCL_HOSTID");
  }
  void TearDown() override {
    unsetenv("NCCL_HOSTID");
    if (before_) setenv("NCCL_HOSTID", before_->c_str(), 1);
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(StartChecks, OwnGpu) {
  check_own_gpu(group_, "uuid " + std::to_string(rank_), "GPU 0000:1b:00.0 (NVIDIA H200)");
  // The last rank shares the GPU of rank 0.
  const int gpu = rank_ == size_ - 1 ? 0 : rank_;
  const std::string name = "GPU 0000:1" + std::to_string(gpu) + ":00.0 (NVIDIA H200)";
  expect_error<InputError>(
      [&] { check_own_gpu(group_, "uuid " + std::to_string(gpu), name); },
      "ranks 0 and " + std::to_string(size_ - 1) + " both use GPU 0000:10:00.0 (NVIDIA H200); start one rank per GPU");
}

TEST_F(StartChecks, RanksThatNcclTakesForThoseOfSeveralHostsShareAGpu) {
  setenv("NCCL_HOSTID", std::to_string(rank_).c_str(), 1);
  check_own_gpu(group_, "uuid", "GPU 0000:10:00.0 (NVIDIA H200)");
  setenv("NCCL_HOSTID", "one", 1);
  expect_error<InputError>([&] { check_own_gpu(group_, "uuid", "GPU 0000:10:00.0 (NVIDIA H200)"); },
                           "ranks 0 and 1 both use GPU 0000:10:00.0 (NVIDIA H200)");
}

TEST_F(StartChecks, SameSettings) {
  const std::string common = "device \"cpu\"\ntraining.seed 1\n";
  check_same_settings(group_, common);
  const std::string last = std::to_string(size_ - 1);
  const auto expect_refused = [&](const std::string& mine, const std::string& others, const std::string& message) {
    expect_error<InputError>([&] { check_same_settings(group_, rank_ == size_ - 1 ? mine : others); }, message);
  };
  expect_refused(common + "training.steps 105\n", common + "training.steps 100\n",
                 "rank " + last + " has training.steps 105, but rank 0 has training.steps 100;");
  expect_refused("a 1\nb 2\n", "b 2\n", "rank " + last + " has a 1, but rank 0 has b 2;");
  expect_refused("a 2\nb 2\n", "a 1\nb 3\n", "rank " + last + " has a 2, but rank 0 has a 1;");
  expect_refused(common + "x 1\n", common, "rank " + last + " has x 1, but rank 0 has nothing more;");
}

}  // namespace
}  // namespace octavo::start_checks_ranks
