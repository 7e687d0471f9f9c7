// Facts about the GPUs and libraries of the machine. Most tests need a GPU.
#include <gtest/gtest.h>

#include <regex>

#include "build_config.h"
#include "kernels/attention/sdpa.h"
#include "kernels/matmul/matmul.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_facts_test {
namespace {

class CudaFactsTest : public ParityTest {};

TEST_F(CudaFactsTest, DriverRunsTheRuntime) {
  const CudaVersions versions = cuda_versions();
  EXPECT_GE(versions.runtime, 12000);
  EXPECT_GE(versions.driver / 1000, versions.runtime / 1000);
}

// The test needs no GPU. It shows that the version comes from the library that is loaded.
TEST(CublasLtTest, VersionIsThatOfTheLoadedLibrary) {
  if constexpr (!kHasCuda) GTEST_SKIP() << "needs a build with CUDA";
  EXPECT_TRUE(std::regex_match(cublaslt_version(), std::regex(R"(\d+\.\d+\.\d+)"))) << cublaslt_version();
}

TEST_F(CudaFactsTest, LibrariesHaveVersions) { EXPECT_TRUE(cudnn_version().starts_with("9.")) << cudnn_version(); }

TEST_F(CudaFactsTest, PeerAccessIsMutual) {
  const int gpus = cuda_device_count();
  if (gpus < 2) GTEST_SKIP() << "needs 2 GPUs";
  for (int i = 1; i < gpus; ++i) EXPECT_EQ(can_access_peer(0, i), can_access_peer(i, 0)) << i;
}

}  // namespace
}  // namespace octavo::parity_facts_test
