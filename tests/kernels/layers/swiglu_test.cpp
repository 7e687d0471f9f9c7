#include "kernels/layers/swiglu.h"

#include <cfenv>

#include "tests/kernels/op_fixture.h"

namespace octavo::swiglu_test {
namespace {

class SwigluTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(SwigluTest);

struct Size {
  int64_t tokens, width;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {5, 64}, {11, 131}};

Values definition(const Values& gate_up, int64_t width) {
  Values out;
  for (size_t t = 0; t < gate_up.size() / static_cast<size_t>(2 * width); ++t) {
    for (size_t c = 0; c < static_cast<size_t>(width); ++c) {
      const double gate = gate_up[t * static_cast<size_t>(2 * width) + c];
      const double up = gate_up[t * static_cast<size_t>(2 * width) + static_cast<size_t>(width) + c];
      out.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return out;
}

TEST_P(SwigluTest, Forward) {
  for (const auto& [tokens, width] : kSizes) {
    const Array gate_up = random({tokens, 2 * width}, 3.0);
    const Array out(dtype(), {tokens, width});
    swiglu_forward({.out = out, .gate_up = gate_up}, stream_);
    expect_close(out, definition(gate_up.values(), width), tolerance());
  }
}

// Subnormal numbers are a hundred times slower on some processors, so they may only occur when the result itself is
// subnormal. A compiler could create them by evaluating the limits of exp_fast for all elements.
TEST_P(SwigluTest, NothingUnderflowsOnOrdinaryValues) {
  const Array gate_up = random({1, 2 * 131}, 0.5);
  const Array out(dtype(), {1, 131});
  std::feclearexcept(FE_ALL_EXCEPT);
  swiglu_forward({.out = out, .gate_up = gate_up}, stream_);
  EXPECT_EQ(std::fetestexcept(FE_UNDERFLOW), 0);
  const Array d_out = random({1, 131}, 1e-3);
  const Array d_gate_up(dtype(), {1, 2 * 131});
  swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);
  EXPECT_EQ(std::fetestexcept(FE_UNDERFLOW), 0);
}

TEST_P(SwigluTest, Backward) {
  for (const auto& [tokens, width] : kSizes) {
    const Array gate_up = random({tokens, 2 * width}, 2.0);
    const Array d_out = random({tokens, width});
    const Array d_gate_up(dtype(), {tokens, 2 * width});
    swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);
    const auto f = [&, w = width](const Values& x) { return dot(d_out, definition(x, w)); };
    expect_gradient(d_gate_up, f, gate_up, tolerance(), "d_gate_up", tokens * width / 200 + 1);

    const Array in_place = gate_up;
    swiglu_backward({.d_gate_up = in_place, .d_out = d_out, .gate_up = in_place}, stream_);
    EXPECT_EQ(in_place.bits(), d_gate_up.bits());
  }
}

TEST_P(SwigluTest, BackwardRecomputesTheResultOfForward) {
  for (const auto& [tokens, width] : kSizes) {
    const Array gate_up = random({tokens, 2 * width}, 2.0);
    const Array d_out = random({tokens, width});
    const Array d_gate_up(dtype(), {tokens, 2 * width});
    const Array expected(dtype(), {tokens, width});
    swiglu_forward({.out = expected, .gate_up = gate_up}, stream_);
    swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);

    const Array in_place = gate_up;
    const Array out_in_place = d_out;
    swiglu_backward({.d_gate_up = in_place, .d_out = out_in_place, .gate_up = in_place, .out = out_in_place}, stream_);
    EXPECT_EQ(out_in_place.bits(), expected.bits());
    EXPECT_EQ(in_place.bits(), d_gate_up.bits());
  }
}

TEST_P(SwigluTest, Amax) {
  const Array gate_up = random({5, 14}, 3.0);
  const Array d_out = random({5, 7});
  const Array out(dtype(), {5, 7});
  const Array d_gate_up(dtype(), {5, 14});
  for (const double before : {0.0, 1000.0}) {
    Array amax(DType::kFloat32, {1});
    amax.fill(before);
    swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax}, stream_);
    EXPECT_EQ(amax.at(0), largest_magnitude(out, before));
    amax.fill(before);
    swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up, .amax = amax}, stream_);
    EXPECT_EQ(amax.at(0), largest_magnitude(d_gate_up, before));
  }
  Array broken = gate_up;
  broken.set(3, std::nan(""));
  Array amax(DType::kFloat32, {1});
  amax.fill(0);
  swiglu_forward({.out = out, .gate_up = broken, .amax = amax}, stream_);
  EXPECT_TRUE(std::isnan(amax.at(0)));
}

// No gradient exceeds the slope times the largest |d_out| by more than the rounding of bfloat16.
TEST_P(SwigluTest, SlopeBoundsTheGradient) {
  for (const auto& [gates, ups] : {std::pair{0.1, 3.0}, {3.0, 0.1}, {30.0, 1.0}}) {
    const Array gate = random({40, 50}, gates);
    const Array up = random({40, 50}, ups);
    Array gate_up(dtype(), {40, 100});
    double expected = 0;
    for (int64_t i = 0; i < gate.size(); ++i) {
      gate_up.set(i / 50 * 100 + i % 50, gate.at(i));
      gate_up.set(i / 50 * 100 + 50 + i % 50, up.at(i));
      const double of_gate = kLargestSiluSlope * static_cast<float>(std::abs(up.at(i)));
      expected = std::max({expected, std::abs(gate.at(i)), of_gate});
    }
    Array amax(DType::kFloat32, {1});
    Array slope(DType::kFloat32, {1});
    amax.fill(0);
    slope.fill(0);
    const Array out(dtype(), {40, 50});
    swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax, .slope = slope}, stream_);
    EXPECT_EQ(slope.at(0), expected);
    const Array d_out = random({40, 50});
    const Array d_gate_up(dtype(), {40, 100});
    swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);
    const double bound = slope.at(0) * largest_magnitude(d_out, 0);
    EXPECT_LE(largest_magnitude(d_gate_up, 0), 1.004 * bound);
    slope.fill(1000);
    swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax, .slope = slope}, stream_);
    EXPECT_EQ(slope.at(0), 1000);
    gate_up.set(60, std::nan(""));
    swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax, .slope = slope}, stream_);
    EXPECT_TRUE(std::isnan(slope.at(0)));
  }
}

TEST_P(SwigluTest, LargeGatesSaturate) {
  Array gate_up(dtype(), {1, 8});
  const double gates[] = {-1e30, -200, 200, 1e30};
  for (int64_t c = 0; c < 4; ++c) {
    gate_up.set(c, gates[c]);
    gate_up.set(4 + c, 1);
  }
  const Array out(dtype(), {1, 4});
  const Array d_gate_up(dtype(), {1, 8});
  Array d_out(dtype(), {1, 4});
  d_out.fill(1);
  swiglu_forward({.out = out, .gate_up = gate_up}, stream_);
  swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);
  EXPECT_NEAR(out.at(1), 0, 1e-30);
  EXPECT_EQ(out.at(2), gate_up.at(2));
  EXPECT_EQ(out.at(3), gate_up.at(3));
  EXPECT_NEAR(d_gate_up.at(1), 0, 1e-30);
  EXPECT_EQ(d_gate_up.at(2), 1);
  for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(std::isfinite(d_gate_up.at(c))) << c;
}

TEST_P(SwigluTest, DoesNotDependOnThreads) {
  const Array gate_up = random({29, 2 * 37});
  const Array d_out = random({29, 37});
  expect_thread_independent([&] {
    const Array out(dtype(), {29, 37});
    swiglu_forward({.out = out, .gate_up = gate_up}, stream_);
    return out;
  });
  expect_thread_independent([&] {
    const Array d_gate_up(dtype(), {29, 2 * 37});
    swiglu_backward({.d_gate_up = d_gate_up, .d_out = d_out, .gate_up = gate_up}, stream_);
    return d_gate_up;
  });
}

TEST_P(SwigluTest, WrongShapesThrow) {
  const Array gate_up = random({3, 10});
  const Array wide(dtype(), {3, 6});
  expect_error([&] { swiglu_forward({.out = wide, .gate_up = gate_up}, stream_); }, "[3, 10], expected");
  const Array d_out = random({3, 5});
  expect_error([&] { swiglu_backward({.d_gate_up = wide, .d_out = d_out, .gate_up = gate_up}, stream_); },
               "[3, 6], expected");
}

}  // namespace
}  // namespace octavo::swiglu_test
