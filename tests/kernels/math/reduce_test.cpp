#include "kernels/math/reduce.h"

#include <algorithm>

#include "tests/kernels/op_fixture.h"

namespace octavo::reduce_test {
namespace {

class ReduceTest : public OpTest {
 protected:
  Array zero() {
    Array out(DType::kFloat32, {1});
    out.fill(0);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, ReduceTest, ::testing::Values(DType::kFloat32));

TEST_P(ReduceTest, SumsAndSumsOfSquares) {
  for (const int64_t n : {0, 1, 2, 255, 256, 257, 1021, 300007}) {
    const Array x = random({n}, 1.0, 0.5);
    const Array squares = random({1});
    const Array total = random({1});
    double expected_squares = squares.at(0);
    double expected_total = total.at(0);
    double magnitude = std::abs(expected_total) + std::abs(expected_squares);
    for (const double v : x.values()) {
      expected_squares += v * v;
      expected_total += v;
      magnitude += std::max(std::abs(v), v * v);
    }
    sum_of_squares({.out = squares, .x = x}, stream_);
    sum({.out = total, .x = x}, stream_);
    EXPECT_NEAR(squares.at(0), expected_squares, 3e-7 * magnitude) << n;
    EXPECT_NEAR(total.at(0), expected_total, 3e-7 * magnitude) << n;
  }
}

// A float32 running sum of ten million equal numbers would be off by several percent. Each thread adds at most about
// 1000 elements in float32. Each addition loses at most 2^-24, here always in the same direction.
TEST_P(ReduceTest, LongSumsKeepTheirPrecision) {
  Array x(DType::kFloat32, {10'000'019});
  x.fill(0.1);
  const Array total = zero();
  sum({.out = total, .x = x}, stream_);
  expect_close(total, {x.at(0) * 10'000'019}, 1e-4, "sum");
}

TEST_P(ReduceTest, DoesNotDependOnThreads) {
  const Array x = random({100'003});
  expect_thread_independent([&] {
    const Array out = zero();
    sum_of_squares({.out = out, .x = x}, stream_);
    return out;
  });
  expect_thread_independent([&] {
    const Array out = zero();
    sum({.out = out, .x = x}, stream_);
    return out;
  });
}

TEST_P(ReduceTest, NanShows) {
  const Array x = random({777});
  Array broken = x;
  broken.set(700, std::nan(""));
  const Array squares = zero();
  sum_of_squares({.out = squares, .x = broken}, stream_);
  EXPECT_TRUE(std::isnan(squares.at(0)));
}

TEST_P(ReduceTest, WrongShapesThrow) {
  const Array x = random({2, 3});
  const Array out = zero();
  const Array pair = random({2});
  expect_error([&] { sum({.out = out, .x = x}, stream_); }, "sum x is float32 [2, 3], expected float32 [6]");
  expect_error([&] { sum_of_squares({.out = pair, .x = pair}, stream_); }, "float32 [2], expected float32 [1]");
}

}  // namespace
}  // namespace octavo::reduce_test
