#include "kernels/optimizer/ema.h"

#include "tests/kernels/law.h"

namespace octavo::ema_test {
namespace {

class EmaTest : public LawTest {};
INSTANTIATE_DEVICES(EmaTest, DType::kFloat32);

struct Case {
  int64_t n, offset, x_offset;
};

// A step that is skipped changes nothing.
TEST_P(EmaTest, EveryStep) {
  for (const auto& [n, offset, x_offset] :
       {Case{1, 0, 0}, {7, 1, 1}, {1009, 0, 0}, {4096, 0, 0}, {10007, 13, 13}, {10007, 2, 3}}) {
    for (const double decay : {0.0, 0.9, 0.9999, 1.0}) {
      const Array average = on_device(random({n}), offset), x = on_device(random({n}), x_offset);
      for (const double skipped : {0.0, 1.0}) {
        Exact exact(n);
        for (int64_t i = 0; i < n; ++i) {
          const double now = skipped == 1 ? average.at(i) : decay * average.at(i) + (1 - decay) * x.at(i);
          const double magnitude = std::abs(average.at(i)) + (1 - decay) * std::abs(x.at(i) - average.at(i));
          exact.set(i, now, skipped == 1 ? 0 : 3 * kFloat32Rounding * magnitude);
        }
        const Array skip = single(skipped);
        ema({.ema = average, .x = x, .skip = skip, .decay = decay}, stream());
        expect_exact(average, "ema", exact);
      }
    }
  }
}

// Rounding does not lose slow averages. The float32 value of 1 - 0.9999 would have a relative error of 2e-4.
TEST_P(EmaTest, SmallSharesAreExact) {
  const Array average = single(0), x = single(1);
  ema({.ema = average, .x = x, .decay = 0.9999}, stream());
  EXPECT_NEAR(average.at(0), 1e-4, 1e-11);
}

TEST_P(EmaTest, EqualValuesStay) {
  const Array x = random({1009}), average = x;
  for (int step = 0; step < 3; ++step) ema({.ema = average, .x = x, .decay = 0.99}, stream());
  EXPECT_EQ(average.bits(), x.bits());
}

TEST_P(EmaTest, WrongArgumentsThrow) {
  const Array average = random({5}), x = random({4});
  expect_error([&] { ema({.ema = average, .x = x, .decay = 0.5}, stream()); },
               "ema is float32 [5], expected float32 [4]");
  expect_error([&] { ema({.ema = average, .x = average, .decay = 1.5}, stream()); },
               "the decay is 1.5, expected 0 to 1");
}

}  // namespace
}  // namespace octavo::ema_test
