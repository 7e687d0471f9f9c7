#include "kernels/matmul/matmul.h"

#include <tuple>

#include "tests/kernels/op_fixture.h"

namespace octavo::matmul_test {
namespace {

class MatmulTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(MatmulTest);

struct Size {
  int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1}, {3, 5, 7}, {1, 67, 31}, {37, 1, 131}, {64, 48, 32}, {53, 71, 97}};

Values definition(const Values& a, const Values& b, const Size& s, bool transpose_a, bool transpose_b) {
  Values d(static_cast<size_t>(s.m * s.n));
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      for (int64_t l = 0; l < s.k; ++l) {
        d[static_cast<size_t>(i * s.n + j)] += a[static_cast<size_t>(transpose_a ? l * s.m + i : i * s.k + l)] *
                                               b[static_cast<size_t>(transpose_b ? j * s.k + l : l * s.n + j)];
      }
    }
  }
  return d;
}

TEST_P(MatmulTest, EveryLayoutAndOutput) {
  for (const Size& s : kSizes) {
    reserve(matmul_workspace_bytes(s.m, s.n, s.k, dtype(), stream_));
    for (int mode = 0; mode < 16; ++mode) {
      const bool transpose_a = mode & 1;
      const bool transpose_b = mode & 2;
      const bool accumulate = mode & 4;
      const DType out_dtype = mode & 8 ? DType::kFloat32 : dtype();
      const Array a = transpose_a ? random({s.k, s.m}) : random({s.m, s.k});
      const Array b = transpose_b ? random({s.n, s.k}) : random({s.k, s.n});
      const Array d = accumulate ? random(out_dtype, {s.m, s.n}) : Array(out_dtype, {s.m, s.n});
      const Values before = d.values();
      matmul({.d = d, .a = a, .b = b, .transpose_a = transpose_a, .transpose_b = transpose_b, .accumulate = accumulate},
             stream_);
      Values expected = definition(a.values(), b.values(), s, transpose_a, transpose_b);
      if (accumulate) expected = sum_of(expected, before);
      // The product of two bfloat16 numbers is exact in float32, so only a bfloat16 output loses more than float32 sums
      // do.
      expect_close(d, expected, out_dtype == DType::kBFloat16 ? 0x1p-8 : 3e-6, fmt::format("mode {}", mode).c_str());
    }
  }
}

TEST_P(MatmulTest, WrongShapesThrow) {
  const Array a = random({3, 5});
  const Array b = random({4, 7});
  const Array d(dtype(), {3, 7});
  const Array int_d(DType::kInt32, {3, 7});
  const std::string name = dtype_name(dtype());
  expect_error([&] { matmul({.d = d, .a = a, .b = b}, stream_); },
               "matmul b is " + name + " [4, 7], expected " + name + " [5, 7]");
  expect_error([&] { matmul({.d = d, .a = a, .b = b, .transpose_a = true}, stream_); },
               "matmul a is " + name + " [3, 5], expected " + name + " [3, 3]");
  const Array good_b = random({5, 7});
  expect_error([&] { matmul({.d = int_d, .a = a, .b = good_b}, stream_); }, "d is int32 [3, 7]");
  if (dtype() == DType::kBFloat16) {
    reserve(matmul_workspace_bytes(3, 7, 5, dtype(), stream_) - 4);
    expect_error([&] { matmul({.d = d, .a = a, .b = good_b}, stream_); }, "an op needs a workspace of");
  }
}

}  // namespace
}  // namespace octavo::matmul_test
