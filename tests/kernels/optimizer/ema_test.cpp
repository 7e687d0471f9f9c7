#include "kernels/optimizer/ema.h"

#include "tests/kernels/op_fixture.h"

namespace octavo::ema_test {
namespace {

class EmaTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Float32, EmaTest, ::testing::Values(DType::kFloat32));

TEST_P(EmaTest, SeveralSteps) {
  for (const int64_t n : {1, 7, 1009}) {
    for (const double decay : {0.0, 0.9, 0.9999, 1.0}) {
      const Array average = random(DType::kFloat32, {n});
      Values expected = average.values();
      for (int step = 0; step < 5; ++step) {
        const Array x = random(DType::kFloat32, {n});
        ema({.ema = average, .x = x, .decay = decay}, stream_);
        for (int64_t i = 0; i < n; ++i) {
          double& e = expected[static_cast<size_t>(i)];
          e = decay * e + (1 - decay) * x.at(i);
        }
      }
      expect_close(average, expected, 1e-6);
    }
  }
}

// Rounding does not lose slow averages. The float32 value of 1 - 0.9999 would have a relative error of 2e-4.
TEST_P(EmaTest, SmallSharesAreExact) {
  Array average(DType::kFloat32, {1});
  average.fill(0);
  Array x(DType::kFloat32, {1});
  x.fill(1);
  ema({.ema = average, .x = x, .decay = 0.9999}, stream_);
  EXPECT_NEAR(average.at(0), 1e-4, 1e-11);
}

TEST_P(EmaTest, EqualValuesStay) {
  const Array x = random(DType::kFloat32, {1009});
  const Array average = x;
  for (int step = 0; step < 3; ++step) ema({.ema = average, .x = x, .decay = 0.99}, stream_);
  EXPECT_EQ(average.bits(), x.bits());
}

TEST_P(EmaTest, SkipLeavesItAsItIs) {
  const Array before = random(DType::kFloat32, {1009});
  const Array average = before;
  Array skip(DType::kFloat32, {1});
  skip.set(0, 1);
  ema({.ema = average, .x = random(DType::kFloat32, {1009}), .skip = skip, .decay = 0.5}, stream_);
  EXPECT_EQ(average.bits(), before.bits());
}

TEST_P(EmaTest, WrongArgumentsThrow) {
  const Array average = random(DType::kFloat32, {5});
  const Array x = random(DType::kFloat32, {4});
  expect_error([&] { ema({.ema = average, .x = x, .decay = 0.5}, stream_); },
               "ema is float32 [5], expected float32 [4]");
  expect_error([&] { ema({.ema = average, .x = average, .decay = 1.5}, stream_); },
               "the decay is 1.5, expected 0 to 1");
}

}  // namespace
}  // namespace octavo::ema_test
