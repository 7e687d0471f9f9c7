#include "kernels/matmul/sgemm.h"

#include <fstream>

#include "tests/kernels/op_fixture.h"

namespace octavo::sgemm_test {
namespace {

class SgemmTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, SgemmTest, testing::Values(DType::kFloat32));

float* memory(const Tensor& x) { return x.data<float>(); }

// The matrices are columns of wider rows, like the heads in attention.
TEST_P(SgemmTest, RowsApartAndAlpha) {
  constexpr int64_t kM = 13, kN = 7, kK = 11;
  const Array a = random({kM, 20});
  const Array b = random({kN, 31});
  const Array d = random({kM, 17});
  const Values before = d.values();
  cpu::sgemm({.m = kM,
              .n = kN,
              .k = kK,
              .transpose_b = true,
              .accumulate = true,
              .lda = 20,
              .ldb = 31,
              .ldd = 17,
              .alpha = 0.5f},
             memory(d), memory(a), memory(b));
  Values expected = before;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      for (int64_t c = 0; c < kK; ++c) {
        expected[static_cast<size_t>(i * 17 + j)] += 0.5 * a.at(i * 20 + c) * b.at(j * 31 + c);
      }
    }
  }
  expect_close(d, expected, 1e-6);
}

TEST_P(SgemmTest, TheSameBitsEveryTime) {
  const Array a = random({256, 300});
  const Array b = random({256, 200});
  const auto multiply = [&] {
    Array d(DType::kFloat32, {300, 200});
    cpu::sgemm({.m = 300, .n = 200, .k = 256, .transpose_a = true, .lda = 300, .ldb = 200, .ldd = 200}, memory(d),
               memory(a), memory(b));
    return d;
  };
  const Array first = multiply();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(multiply().bits(), first.bits());
}

// A library that selects kernels by processor model can fall back to very old kernels on a newer processor.
TEST_P(SgemmTest, UsesTheKernelsThatTheProcessorSupports) {
  std::ifstream file("/proc/cpuinfo");
  const std::string info{std::istreambuf_iterator<char>(file), {}};
  if (info.find(" avx2") == std::string::npos) GTEST_SKIP() << "a processor without AVX2";
  const bool can_avx512 = info.find(" avx512bw") != std::string::npos && info.find(" avx512vl") != std::string::npos &&
                          info.find(" avx512dq") != std::string::npos;
  const std::string kernels = cpu::sgemm_kernels();
  if (!kernels.starts_with("oneDNN")) GTEST_SKIP() << kernels;
  for (const char* limit : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (std::getenv(limit) != nullptr) GTEST_SKIP() << "the environment selects kernels: " << limit;
  }
  EXPECT_NE(kernels.find(can_avx512 ? "AVX-512" : "AVX2"), std::string::npos) << kernels;
}

}  // namespace
}  // namespace octavo::sgemm_test
