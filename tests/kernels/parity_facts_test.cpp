// What the machine says of its GPUs and libraries, where there is a GPU.
#include <gtest/gtest.h>

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

TEST_F(CudaFactsTest, LibrariesHaveVersions) {
  EXPECT_NE(cublaslt_version().find('.'), std::string::npos);
  EXPECT_TRUE(cudnn_version().starts_with("9.")) << cudnn_version();
}

TEST_F(CudaFactsTest, PeerAccessIsMutual) {
  const int gpus = cuda_device_count();
  if (gpus < 2) GTEST_SKIP() << "needs 2 GPUs";
  for (int i = 1; i < gpus; ++i) EXPECT_EQ(can_access_peer(0, i), can_access_peer(i, 0)) << i;
}

}  // namespace
}  // namespace octavo::parity_facts_test
