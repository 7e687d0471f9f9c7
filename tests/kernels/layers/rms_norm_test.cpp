#include "kernels/layers/rms_norm.h"

#include "tests/kernels/op_fixture.h"

namespace octavo::rms_norm_test {
namespace {

class RmsNormTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(RmsNormTest);

constexpr float kEps = 1e-3f;  // The epsilon is so large that it affects the result.

struct Size {
  int64_t tokens, hidden;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {5, 64}, {11, 131}, {2, 1024}};

Values rstd_of(const Values& h, int64_t tokens, int64_t hidden) {
  Values rstd;
  for (int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < hidden; ++c)
      squares += h[static_cast<size_t>(t * hidden + c)] * h[static_cast<size_t>(t * hidden + c)];
    rstd.push_back(1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(kEps)));
  }
  return rstd;
}

Values definition(const Values& h, const Values& weight) {
  const auto hidden = static_cast<int64_t>(weight.size());
  const auto tokens = static_cast<int64_t>(h.size()) / hidden;
  const Values rstd = rstd_of(h, tokens, hidden);
  Values out(h);
  for (size_t i = 0; i < h.size(); ++i) out[i] *= rstd[i / weight.size()] * weight[i % weight.size()];
  return out;
}

TEST_P(RmsNormTest, Forward) {
  for (const auto& [tokens, hidden] : kSizes) {
    const Array x = random({tokens, hidden}, 2.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array out(dtype(), {tokens, hidden});
    const Array rstd(DType::kFloat32, {tokens});
    rms_norm_forward(
        {.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight, .eps = kEps}, stream_);
    expect_close(out, definition(x.values(), weight.values()), tolerance());
    expect_close(rstd, rstd_of(x.values(), tokens, hidden), 3e-6, "rstd");
  }
}

// The sum h = x + residual is rounded once to the compute dtype, and the rounded h is normalized.
TEST_P(RmsNormTest, ForwardWithResidual) {
  for (const auto& [tokens, hidden] : kSizes) {
    const Array x = random({tokens, hidden}, 2.0);
    const Array residual = random({tokens, hidden}, 3.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array out(dtype(), {tokens, hidden});
    const Array rstd(DType::kFloat32, {tokens});
    const Array h(dtype(), {tokens, hidden});
    rms_norm_forward(
        {.out = out, .rstd = rstd, .residual_out = h, .x = x, .residual = residual, .weight = weight, .eps = kEps},
        stream_);
    Array sum(dtype(), {tokens, hidden});
    for (int64_t i = 0; i < sum.size(); ++i) sum.set(i, x.at(i) + residual.at(i));
    EXPECT_EQ(h.bits(), sum.bits());
    expect_close(out, definition(h.values(), weight.values()), tolerance());
    expect_close(rstd, rstd_of(h.values(), tokens, hidden), 3e-6, "rstd");

    Array aliased_x = x;
    Array aliased_residual = residual;
    for (Array* alias : {&aliased_x, &aliased_residual}) {
      const Array out2(dtype(), {tokens, hidden});
      const Tensor x2 = alias == &aliased_x ? aliased_x : x;
      const Tensor residual2 = alias == &aliased_residual ? aliased_residual : residual;
      rms_norm_forward({.out = out2,
                        .rstd = rstd,
                        .residual_out = *alias,
                        .x = x2,
                        .residual = residual2,
                        .weight = weight,
                        .eps = kEps},
                       stream_);
      EXPECT_EQ(alias->bits(), h.bits());
      EXPECT_EQ(out2.bits(), out.bits());
    }
  }
}

TEST_P(RmsNormTest, Backward) {
  for (const auto& [tokens, hidden] : kSizes) {
    const Array h = random({tokens, hidden}, 2.0);
    const Array weight = random({hidden}, 0.3, 1.0);
    const Array d_out = random({tokens, hidden});
    const Array d_residual = random({tokens, hidden});
    Array rstd(DType::kFloat32, {tokens});
    for (int64_t t = 0; t < tokens; ++t) rstd.set(t, rstd_of(h.values(), tokens, hidden)[static_cast<size_t>(t)]);
    reserve(rms_norm_backward_workspace_bytes(hidden, stream_));

    const Array plain_d_h(dtype(), {tokens, hidden});
    const Array d_weight = random(DType::kFloat32, {hidden});
    const Values before = d_weight.values();
    RmsNormBackward args{.d_h = plain_d_h,
                         .d_weight = d_weight,
                         .d_out = d_out,
                         .d_residual = {},
                         .h = h,
                         .rstd = rstd,
                         .weight = weight};
    rms_norm_backward(args, stream_);
    const auto of_h = [&](const Values& v) { return dot(d_out, definition(v, weight.values())); };
    const auto of_weight = [&](const Values& v) { return dot(d_out, definition(h.values(), v)); };
    // With one column d_h is the difference of two nearly equal terms, so its relative error is large.
    if (hidden > 1) expect_gradient(plain_d_h, of_h, h, tolerance(), "d_h", hidden / 50 + 1);
    expect_gradient(d_weight, of_weight, weight, 3e-6, "d_weight", hidden / 50 + 1, before);

    // Backward adds d_residual. Its output d_h may overwrite d_residual or d_out.
    const Array d_h(dtype(), {tokens, hidden});
    args.d_h = d_h;
    args.d_residual = d_residual;
    rms_norm_backward(args, stream_);
    const auto with_residual = [&](const Values& v) { return of_h(v) + dot(d_residual, v); };
    expect_gradient(d_h, with_residual, h, tolerance(), "d_h with d_residual", hidden / 50 + 1);
    const Array over_residual = d_residual;
    args.d_h = over_residual;
    args.d_residual = over_residual;
    rms_norm_backward(args, stream_);
    EXPECT_EQ(over_residual.bits(), d_h.bits());
    const Array over_d_out = d_out;
    args.d_h = over_d_out;
    args.d_out = over_d_out;
    args.d_residual = d_residual;
    rms_norm_backward(args, stream_);
    EXPECT_EQ(over_d_out.bits(), d_h.bits());
  }
}

TEST_P(RmsNormTest, Amax) {
  const Array x = random({7, 33}, 2.0);
  const Array weight = random({33}, 0.3, 1.0);
  const Array d_out = random({7, 33});
  const Array out(dtype(), {7, 33});
  const Array rstd(DType::kFloat32, {7});
  const Array d_weight = random(DType::kFloat32, {33});
  reserve(rms_norm_backward_workspace_bytes(33, stream_));
  for (const double before : {0.0, 1000.0}) {
    Array amax(DType::kFloat32, {1});
    amax.fill(before);
    rms_norm_forward(
        {.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight, .amax = amax},
        stream_);
    EXPECT_EQ(amax.at(0), largest_magnitude(out, before));
    amax.fill(before);
    rms_norm_backward({.d_h = out,
                       .d_weight = d_weight,
                       .d_out = d_out,
                       .d_residual = {},
                       .h = x,
                       .rstd = rstd,
                       .weight = weight,
                       .amax = amax},
                      stream_);
    EXPECT_EQ(amax.at(0), largest_magnitude(out, before));
  }
}

TEST_P(RmsNormTest, DoesNotDependOnThreads) {
  const Array h = random({37, 211});
  const Array weight = random({211});
  const Array d_out = random({37, 211});
  const Array rstd(DType::kFloat32, {37});
  expect_thread_independent([&] {
    const Array out(dtype(), {37, 211});
    rms_norm_forward({.out = out, .rstd = rstd, .residual_out = {}, .x = h, .residual = {}, .weight = weight}, stream_);
    return out;
  });
  for (const bool of_weight : {false, true}) {
    expect_thread_independent([&] {
      reserve(rms_norm_backward_workspace_bytes(211, stream_));
      const Array d_h(dtype(), {37, 211});
      Array d_weight(DType::kFloat32, {211});
      d_weight.fill(0.5);
      rms_norm_backward(
          {.d_h = d_h, .d_weight = d_weight, .d_out = d_out, .d_residual = {}, .h = h, .rstd = rstd, .weight = weight},
          stream_);
      return of_weight ? d_weight : d_h;
    });
  }
}

TEST_P(RmsNormTest, WrongShapesThrow) {
  const Array x = random({3, 5});
  const Array out(dtype(), {3, 5});
  const Array rstd(DType::kFloat32, {3});
  const Array weight = random({4});
  const Array good_weight = random({5});
  RmsNormForward args{.out = out, .rstd = rstd, .residual_out = {}, .x = x, .residual = {}, .weight = weight};
  expect_error([&] { rms_norm_forward(args, stream_); }, "[4], expected " + std::string(dtype_name(dtype())) + " [5]");
  args.weight = good_weight;
  args.residual = x;
  expect_error([&] { rms_norm_forward(args, stream_); }, "residual_out is missing");
  const RmsNormBackward backward{.d_h = out,
                                 .d_weight = good_weight,
                                 .d_out = out,
                                 .d_residual = {},
                                 .h = x,
                                 .rstd = weight,
                                 .weight = good_weight};
  expect_error([&] { rms_norm_backward(backward, stream_); }, "rms_norm_backward ");
}

}  // namespace
}  // namespace octavo::rms_norm_test
