#include "kernels/layers/rms_norm.h"

#include "tests/kernels/law.h"

namespace octavo::rms_norm_test {
namespace {

constexpr float kEps = 1e-3f;  // The epsilon is so large that it affects the result.

struct Size {
  int64_t tokens, hidden;
};

class RmsNormTest : public LawTest {
 protected:
  // Odd, prime and realistic sizes. Those from 1301 tokens on take long on the CPU.
  std::vector<Size> sizes() const {
    std::vector<Size> all = {{1, 1}, {3, 7}, {5, 64}, {11, 131}, {2, 1024}, {37, 1000}};
    if (on_gpu()) {
      for (const Size& size : {Size{1301, 64}, {257, 127}, {67, 1000}, {1111, 2048}, {601, 4096}, {300, 8192}}) {
        all.push_back(size);
      }
      for (const Size& size : {Size{141, 16384}, {3, 16392}}) all.push_back(size);
    }
    return all;
  }
  Array random_rstd(int64_t tokens) { return random(DType::kFloat32, {tokens}, 0.1, 1.0); }
};
INSTANTIATE_DEVICES_AND_DTYPES(RmsNormTest);

TEST_P(RmsNormTest, Forward) {
  for (const auto& [tokens, hidden] : sizes()) {
    const Array x = random({tokens, hidden}, 2.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array out = array({tokens, hidden});
    const Array rstd = array(DType::kFloat32, {tokens});
    const ExactRmsNorm exact = exact_rms_norm(x.host(), weight.host(), double{kEps});
    rms_norm_forward(
        {.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight, .eps = kEps},
        stream());
    expect_exact(out, "rms_norm_forward out", exact.out);
    expect_exact(rstd, "rms_norm_forward rstd", exact.rstd);
  }
}

// The sum h = x + residual is rounded once to the compute dtype, and the rounded h is normalized. The sum may replace x
// or the residual.
TEST_P(RmsNormTest, ForwardWithResidual) {
  for (const auto& [tokens, hidden] : sizes()) {
    const Array x = random({tokens, hidden}, 2.0);
    const Array residual = random({tokens, hidden}, 3.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array rstd = array(DType::kFloat32, {tokens});
    Array sum = array({tokens, hidden});
    for (int64_t i = 0; i < sum.size(); ++i) sum.set(i, x.at(i) + residual.at(i));
    const ExactRmsNorm exact = exact_rms_norm(sum.host(), weight.host(), double{kEps});
    const Array h = array({tokens, hidden}), over_x = x, over_residual = residual;
    for (const Array* result : {&h, &over_x, &over_residual}) {
      const Array out = array({tokens, hidden});
      rms_norm_forward({.out = out,
                        .rstd = rstd,
                        .residual_out = *result,
                        .x = result == &over_x ? over_x : x,
                        .residual = result == &over_residual ? over_residual : residual,
                        .weight = weight,
                        .eps = kEps},
                       stream());
      EXPECT_TRUE(result->bits() == sum.bits()) << "residual_out, " << x.host().describe();
      expect_exact(out, "rms_norm_forward out", exact.out);
      expect_exact(rstd, "rms_norm_forward rstd", exact.rstd);
    }
  }
}

// Backward adds d_residual. Its output d_h may overwrite d_residual or d_out.
TEST_P(RmsNormTest, Backward) {
  for (const auto& [tokens, hidden] : sizes()) {
    reserve(rms_norm_backward_workspace_bytes(hidden, stream()));
    const Array h = random({tokens, hidden}, 2.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array d_out = random({tokens, hidden});
    const Array d_residual = random({tokens, hidden});
    const Array rstd = random_rstd(tokens);
    const Array d_weight = random(DType::kFloat32, {hidden});
    const auto backward = [&](const Array& d_h, const Array& gradient, const Tensor& past) {
      rms_norm_backward({d_h, d_weight, gradient, past, h, rstd, weight}, stream());
    };
    const auto exact = [&](const Tensor& past) {
      return exact_rms_norm_backward(d_weight.host(), d_out.host(), past, h.host(), rstd.host(), weight.host());
    };
    const Array d_h = array({tokens, hidden});
    for (const bool with_residual : {false, true}) {
      const ExactRmsNormBackward expected = exact(with_residual ? d_residual.host() : Tensor());
      backward(d_h, d_out, with_residual ? Tensor(d_residual) : Tensor());
      expect_exact(d_h, "rms_norm_backward d_h", expected.d_h);
      expect_exact(d_weight, "rms_norm_backward d_weight", expected.d_weight);
    }
    const Array over_residual = d_residual, over_d_out = d_out;
    backward(over_residual, d_out, over_residual);
    EXPECT_TRUE(over_residual.bits() == d_h.bits()) << "in place differs, " << h.host().describe();
    backward(over_d_out, over_d_out, d_residual);
    EXPECT_TRUE(over_d_out.bits() == d_h.bits()) << "in place differs, " << h.host().describe();
  }
}

TEST(RmsNormFormula, Gradient) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  const auto random = [&](const std::vector<int64_t>& shape) {
    Array x(DType::kFloat32, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, normal(generator));
    return x;
  };
  Array h = random({5, 13}), weight = random({13}), rstd(DType::kFloat32, {5});
  const Array d_out = random({5, 13}), d_residual = random({5, 13}), d_weight = random({13});
  const auto out = [&] { return exact_rms_norm(h.host(), weight.host(), double{kEps}); };
  const Values of_h = out().rstd.values;
  for (int64_t t = 0; t < 5; ++t) rstd.set(t, of_h[static_cast<size_t>(t)]);
  const auto loss = [&] { return dot(d_out, out().out.values) + dot(d_residual, h.values()); };
  const ExactRmsNormBackward exact =
      exact_rms_norm_backward(d_weight.host(), d_out.host(), d_residual.host(), h.host(), rstd.host(), weight.host());
  expect_gradient(exact.d_h, h, loss, "d_h");
  expect_gradient(exact.d_weight, weight, loss, "d_weight", 1, d_weight.values());
}

TEST_P(RmsNormTest, Amax) {
  for (const auto& [tokens, hidden] : sizes()) {
    reserve(rms_norm_backward_workspace_bytes(hidden, stream()));
    Array x = random({tokens, hidden}, 2.0), d_out = random({tokens, hidden});
    const Array weight = random({hidden}, 0.3, 1.0);
    Array out = array({tokens, hidden});
    const Array rstd = random_rstd(tokens), d_weight = random(DType::kFloat32, {hidden});
    const auto forward = [&](const Tensor& amax) {
      rms_norm_forward(
          {.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight, .amax = amax},
          stream());
    };
    const auto backward = [&](const Tensor& amax) {
      rms_norm_backward({out, d_weight, d_out, x, x, rstd, weight, amax}, stream());
    };
    expect_amax(out, forward);
    expect_amax(out, backward);
    d_out.set(d_out.size() - 1, std::nan(""));
    EXPECT_TRUE(std::isnan(amax_after(backward))) << hidden;
    x.set(0, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(amax_after(forward))) << hidden;
  }
}

TEST_P(RmsNormTest, IsReproducible) {
  const Array h = random({37, 211});
  const Array weight = random({211});
  const Array d_out = random({37, 211});
  const Array rstd = random_rstd(37);
  expect_reproducible([&] {
    const Array out = array({37, 211}), own_rstd = array(DType::kFloat32, {37});
    rms_norm_forward({.out = out, .rstd = own_rstd, .residual_out = {}, .x = h, .residual = {}, .weight = weight},
                     stream());
    return out;
  });
  for (const bool of_weight : {false, true}) {
    expect_reproducible([&] {
      reserve(rms_norm_backward_workspace_bytes(211, stream()));
      const Array d_h = array({37, 211});
      const Array d_weight = filled(DType::kFloat32, {211}, 0.5);
      rms_norm_backward({d_h, d_weight, d_out, {}, h, rstd, weight}, stream());
      return of_weight ? d_weight : d_h;
    });
  }
}

TEST_P(RmsNormTest, WrongShapesThrow) {
  const Array x = random({3, 5}), weight = random({4}), good_weight = random({5});
  const Array out = array({3, 5}), rstd = array(DType::kFloat32, {3});
  RmsNormForward args{.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight};
  expect_error([&] { rms_norm_forward(args, stream()); }, fmt::format("[4], expected {} [5]", dtype_name(dtype())));
  args.weight = good_weight;
  args.residual = x;
  expect_error([&] { rms_norm_forward(args, stream()); }, "residual_out is missing");
  const RmsNormBackward backward{out, good_weight, out, {}, x, weight, good_weight};
  expect_error([&] { rms_norm_backward(backward, stream()); }, "rms_norm_backward ");
}

}  // namespace
}  // namespace octavo::rms_norm_test
