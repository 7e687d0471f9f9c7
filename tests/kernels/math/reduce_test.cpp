#include "kernels/math/reduce.h"

#include "tests/kernels/law.h"

namespace octavo::reduce_test {
namespace {

// The dtype is that of the squared elements.
class ReduceTest : public LawTest {
 protected:
  void SetUp() override {
    LawTest::SetUp();
    if (!IsSkipped()) reserve(reduce_workspace_bytes(stream()));
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(ReduceTest);

TEST_P(ReduceTest, SumsAndSumsOfSquares) {
  for (const int64_t n : {0, 1, 2, 3, 255, 256, 257, 511, 1021, 10007, 300007, on_gpu() ? 3000001 : 4096}) {
    for (const int64_t offset : {0, 1}) {
      const Array x = on_device(random(DType::kFloat32, {n}, 1.0, 0.5), offset), y = on_device(random({n}), offset);
      const Array total = random(DType::kFloat32, {1});
      const Exact squares = exact_sum(total.host(), y.host(), true);
      sum_of_squares({total, y}, stream());
      expect_exact(total, "sum_of_squares", squares);
      const Exact exact = exact_sum(total.host(), x.host(), false);
      sum({total, x}, stream());
      expect_exact(total, "sum", exact);
      expect_reproducible([&] {
        const Array out = single(0);
        sum({out, x}, stream());
        sum_of_squares({out, y}, stream());
        return out;
      });
    }
  }
}

// A float32 running sum of ten million equal numbers would be off by several percent. Each thread adds at most about
// 1000 elements in float32. Each addition loses at most 2^-24, here always in the same direction.
TEST_P(ReduceTest, LongSumsKeepTheirPrecision) {
  const Array x = filled(DType::kFloat32, {10'000'019}, 0.1), total = single(0);
  sum({total, x}, stream());
  EXPECT_NEAR(total.at(0) / (x.at(0) * 10'000'019), 1, 1e-4);
}

TEST_P(ReduceTest, NanShows) {
  Array broken = random(DType::kFloat32, {777});
  broken.set(700, std::nan(""));
  const Array squares = single(0);
  sum_of_squares({squares, broken}, stream());
  EXPECT_TRUE(std::isnan(squares.at(0)));
}

TEST_P(ReduceTest, WrongShapesThrow) {
  const Array x = random(DType::kFloat32, {2, 3}), pair = random(DType::kFloat32, {2}), out = single(0);
  expect_error([&] { sum({out, x}, stream()); }, "sum x is float32 [2, 3], expected float32 [6]");
  expect_error([&] { sum_of_squares({pair, pair}, stream()); }, "float32 [2], expected float32 [1]");
}

}  // namespace
}  // namespace octavo::reduce_test
