#include "kernels/layers/swiglu.h"

#include <cfenv>

#include "tests/kernels/law.h"

namespace octavo::swiglu_test {
namespace {

struct Size {
  int64_t tokens, width;
};

class SwigluTest : public LawTest {
 protected:
  // Odd, prime and realistic sizes.
  std::vector<Size> sizes() const {
    std::vector<Size> all = {{1, 1}, {3, 7}, {5, 127}, {31, 129}, {1030, 8}};
    if (on_gpu()) {
      for (const Size& size : {Size{131, 704}, {67, 7168}, {13, 14336}}) all.push_back(size);
    }
    return all;
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(SwigluTest);

// Backward may write over its input, and can recompute the result of forward, also in place of d_out, with equal bits.
TEST_P(SwigluTest, ForwardAndBackward) {
  for (const auto& [tokens, width] : sizes()) {
    const Array gate_up = random({tokens, 2 * width}, 4.0);
    const Array d_out = random({tokens, width});
    const Array out = array({tokens, width}), d_gate_up = array({tokens, 2 * width});
    const ExactSwiglu exact = exact_swiglu(gate_up.host(), d_out.host());
    swiglu_forward({out, gate_up}, stream());
    expect_exact(out, "swiglu_forward out", exact.out);
    swiglu_backward({d_gate_up, d_out, gate_up}, stream());
    expect_exact(d_gate_up, "swiglu_backward d_gate_up", exact.d_gate_up);
    const Array in_place = gate_up, again = gate_up, out_in_place = d_out;
    swiglu_backward({in_place, d_out, in_place}, stream());
    EXPECT_TRUE(in_place.bits() == d_gate_up.bits()) << gate_up.host().describe();
    swiglu_backward({.d_gate_up = again, .d_out = out_in_place, .gate_up = again, .out = out_in_place}, stream());
    EXPECT_TRUE(again.bits() == d_gate_up.bits()) << gate_up.host().describe();
    EXPECT_TRUE(out_in_place.bits() == out.bits()) << gate_up.host().describe();
  }
}

TEST(SwigluFormula, Gradient) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  Array gate_up(DType::kFloat32, {3, 14}), d_out(DType::kFloat32, {3, 7});
  for (Array* x : {&gate_up, &d_out}) {
    for (int64_t i = 0; i < x->size(); ++i) x->set(i, 2 * normal(generator));
  }
  const auto exact = [&] { return exact_swiglu(gate_up.host(), d_out.host()); };
  expect_gradient(
      exact().d_gate_up, gate_up, [&] { return dot(d_out, exact().out.values); }, "d_gate_up");
}

// Subnormal numbers are a hundred times slower on some processors, so they may only occur when the result itself is
// subnormal. A compiler could create them by evaluating the limits of exp_fast for all elements.
TEST(SwigluOnCpu, NothingUnderflowsOnOrdinaryValues) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Stream stream = Stream::cpu();
    Array gate_up(dtype, {1, 2 * 131}), d_out(dtype, {1, 131});
    for (int64_t i = 0; i < gate_up.size(); ++i) gate_up.set(i, std::sin(static_cast<double>(i)));
    d_out.fill(1e-3);
    const Array out(dtype, {1, 131}), d_gate_up(dtype, {1, 2 * 131});
    std::feclearexcept(FE_ALL_EXCEPT);
    swiglu_forward({out, gate_up}, stream);
    swiglu_backward({d_gate_up, d_out, gate_up}, stream);
    EXPECT_EQ(std::fetestexcept(FE_UNDERFLOW), 0);
  }
}

TEST_P(SwigluTest, Amax) {
  for (const auto& [tokens, width] : sizes()) {
    Array gate_up = random({tokens, 2 * width}, 4.0);
    const Array d_out = random({tokens, width});
    Array out = array({tokens, width}), d_gate_up = array({tokens, 2 * width});
    const auto forward = [&](const Tensor& amax) { swiglu_forward({out, gate_up, amax}, stream()); };
    const auto backward = [&](const Tensor& amax) { swiglu_backward({d_gate_up, d_out, gate_up, amax}, stream()); };
    expect_amax(out, forward);
    expect_amax(d_gate_up, backward);
    gate_up.set(gate_up.size() - 1, std::nan(""));
    EXPECT_TRUE(std::isnan(amax_after(forward)));
    EXPECT_TRUE(std::isnan(amax_after(backward)));
  }
}

// No gradient exceeds the gradient bound factor times the largest |d_out| by more than the rounding of bfloat16.
TEST_P(SwigluTest, FactorBoundsTheGradient) {
  for (const auto& [tokens, width] : sizes()) {
    for (const auto& [gates, ups] : {std::pair{0.1, 3.0}, {3.0, 0.1}, {30.0, 1.0}}) {
      Array gate_up = random({tokens, 2 * width});
      double expected = 0;
      for (int64_t i = 0; i < gate_up.size(); ++i) {
        const bool is_gate = i % (2 * width) < width;
        gate_up.set(i, gate_up.at(i) * (is_gate ? gates : ups));
        const auto magnitude = static_cast<float>(std::abs(gate_up.at(i)));
        expected = std::max(expected, static_cast<double>(is_gate ? magnitude : kLargestSiluSlope * magnitude));
      }
      const Array out = array({tokens, width}), amax = single(0);
      const auto factor_after = [&](double before) {
        const Array gradient_bound_factor = single(before);
        swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax, .gradient_bound_factor = gradient_bound_factor},
                       stream());
        return gradient_bound_factor.at(0);
      };
      EXPECT_EQ(factor_after(0), expected);
      EXPECT_EQ(factor_after(1000), 1000);
      const Array d_out = random({tokens, width}), d_gate_up = array({tokens, 2 * width});
      swiglu_backward({d_gate_up, d_out, gate_up}, stream());
      EXPECT_LE(largest_magnitude(d_gate_up, 0), 1.004 * expected * largest_magnitude(d_out, 0));
      gate_up.set(width, std::nan(""));
      EXPECT_TRUE(std::isnan(factor_after(0)));
    }
  }
}

TEST_P(SwigluTest, LargeGatesSaturate) {
  Array gate_up = filled(dtype(), {1, 8}, 1);
  const double gates[] = {-1e30, -200, 200, 1e30};
  for (int64_t c = 0; c < 4; ++c) gate_up.set(c, gates[c]);
  const Array out = array({1, 4}), d_gate_up = array({1, 8}), d_out = filled(dtype(), {1, 4}, 1);
  swiglu_forward({out, gate_up}, stream());
  swiglu_backward({d_gate_up, d_out, gate_up}, stream());
  EXPECT_NEAR(out.at(1), 0, 1e-30);
  EXPECT_EQ(out.at(2), gate_up.at(2));
  EXPECT_EQ(out.at(3), gate_up.at(3));
  EXPECT_NEAR(d_gate_up.at(1), 0, 1e-30);
  EXPECT_EQ(d_gate_up.at(2), 1);
  for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(std::isfinite(d_gate_up.at(c))) << c;
}

TEST_P(SwigluTest, IsReproducible) {
  const Array gate_up = random({29, 2 * 37}), d_out = random({29, 37});
  for (const bool backward : {false, true}) {
    expect_reproducible([&] {
      const Array out = array({29, 37}), d_gate_up = array({29, 2 * 37});
      swiglu_forward({out, gate_up}, stream());
      swiglu_backward({d_gate_up, d_out, gate_up}, stream());
      return backward ? d_gate_up : out;
    });
  }
}

TEST_P(SwigluTest, WrongShapesThrow) {
  const Array gate_up = random({3, 10}), d_out = random({3, 5}), wide = array({3, 6});
  expect_error([&] { swiglu_forward({wide, gate_up}, stream()); }, "[3, 10], expected");
  expect_error([&] { swiglu_backward({wide, d_out, gate_up}, stream()); }, "[3, 6], expected");
}

}  // namespace
}  // namespace octavo::swiglu_test
