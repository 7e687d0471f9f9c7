#include "kernels/optimizer/adamw.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/op_fixture.h"

namespace octavo::adamw_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The parameter is the dtype of the moments.
class AdamwTest : public OpTest {
 protected:
  struct State {
    Array master, exp_avg, exp_avg_sq;
  };
  State start(int64_t n) {
    State state{random(DType::kFloat32, {n}), Array(dtype(), {n}), Array(dtype(), {n})};
    state.exp_avg.fill(0);
    state.exp_avg_sq.fill(0);
    return state;
  }

  // The reference rounds its moments as the op stores them. If the op rounds an element the other way, the difference
  // is 2^-8.
  double tolerance_of_moments() const { return dtype() == DType::kBFloat16 ? 0x1p-8 : 1e-6; }
};
INSTANTIATE_COMPUTE_DTYPES(AdamwTest);

double stored(double value, DType dtype) {
  Array one(dtype, {1});
  one.set(0, value);
  return one.at(0);
}

struct Reference {
  Values w, m, v;
  DType moments;

  void step(const AdamwOptions& o, const Array& grad, double sum_of_squares) {
    const double clip = o.grad_clip;
    const double c = clip <= 0 ? 1.0 : std::min(1.0, clip / (std::sqrt(sum_of_squares) + 1e-6));
    const double beta1 = o.beta1, beta2 = o.beta2, lr = o.lr, eps = o.eps, decay = o.weight_decay;
    const auto t = static_cast<double>(o.step);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = c * grad.at(static_cast<int64_t>(i));
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double unbiased_m = m[i] / (1 - std::pow(beta1, t));
      const double unbiased_v = v[i] / (1 - std::pow(beta2, t));
      m[i] = stored(m[i], moments);
      v[i] = stored(v[i], moments);
      w[i] -= lr * (unbiased_m / (std::sqrt(unbiased_v) + eps) + decay * w[i]);
    }
  }
};

TEST_P(AdamwTest, SeveralSteps) {
  for (const int64_t n : {1, 7, 1009}) {
    // Limits of the gradient norm: 0 disables clipping, 0.5 clips the norm, and 1e6 is above the norm.
    for (const float grad_clip : {0.0f, 0.5f, 1e6f}) {
      State state = start(n);
      const Values w0 = state.master.values();
      Reference expected{w0, Values(static_cast<size_t>(n)), Values(static_cast<size_t>(n)), dtype()};
      const Array weight(DType::kBFloat16, {n});
      for (int64_t step = 1; step <= 5; ++step) {
        const Array grad = random(DType::kFloat32, {n});
        Array squares(DType::kFloat32, {1});
        squares.set(0, dot(grad, grad.values()));
        const AdamwOptions options{.lr = 0.01f,
                                   .beta1 = 0.8f,
                                   .beta2 = 0.9f,
                                   .eps = 1e-4f,
                                   .weight_decay = 0.1f,
                                   .grad_clip = grad_clip,
                                   .step = step};
        adamw({.master = state.master,
               .exp_avg = state.exp_avg,
               .exp_avg_sq = state.exp_avg_sq,
               .grad = grad,
               .weight = weight,
               .grad_sum_of_squares = squares,
               .options = options},
              stream_);
        expected.step(options, grad, squares.at(0));
      }
      expect_close(state.exp_avg, expected.m, tolerance_of_moments(), "exp_avg");
      expect_close(state.exp_avg_sq, expected.v, tolerance_of_moments(), "exp_avg_sq");
      // Compares updates instead of weights, because most of a weight is its old value.
      Values update = state.master.values();
      Values expected_update = expected.w;
      for (size_t i = 0; i < w0.size(); ++i) {
        EXPECT_EQ(weight.at(static_cast<int64_t>(i)), stored(update[i], DType::kBFloat16));
        update[i] -= w0[i];
        expected_update[i] -= w0[i];
      }
      EXPECT_LT(relative_error(update, expected_update), tolerance_of_moments() + 1e-5) << n << " clip " << grad_clip;
    }
  }
}

// The amax covers the weights after the update and is never smaller than before.
TEST_P(AdamwTest, Amax) {
  for (const int64_t n : {1, 1009}) {
    State state = start(n);
    Array grad = random(DType::kFloat32, {n});
    Array amax(DType::kFloat32, {1});
    const auto step = [&] {
      adamw({.master = state.master,
             .exp_avg = state.exp_avg,
             .exp_avg_sq = state.exp_avg_sq,
             .grad = grad,
             .weight = {},
             .amax = amax,
             .grad_sum_of_squares = {},
             .options = {.lr = 0.5f}},
            stream_);
    };
    for (const double before : {0.0, 1000.0}) {
      amax.set(0, before);
      const double old = largest_magnitude(state.master, before);
      step();
      EXPECT_EQ(amax.at(0), largest_magnitude(state.master, before));
      EXPECT_EQ(amax.at(0) == old, before == 1000.0) << "the amax is that of the weights before the update";
    }
    grad.set(n - 1, kInfinity);  // The moments become infinite, so the update is NaN.
    step();
    EXPECT_TRUE(std::isnan(amax.at(0)));
    grad.set(n - 1, 1);
    step();
    EXPECT_TRUE(std::isnan(amax.at(0))) << "a NaN was forgotten";
  }
}

// If the gradient and the moments are zero, only the weight decay acts: padding stays zero, and weights shrink by lr *
// decay.
TEST_P(AdamwTest, ZeroGradient) {
  State state = start(3);
  state.master.set(0, 0);
  state.master.set(1, 2);
  Array grad(DType::kFloat32, {3});
  grad.fill(0);
  adamw({.master = state.master,
         .exp_avg = state.exp_avg,
         .exp_avg_sq = state.exp_avg_sq,
         .grad = grad,
         .weight = {},
         .grad_sum_of_squares = {},
         .options = {.lr = 0.5f, .weight_decay = 0.25f}},
        stream_);
  EXPECT_EQ(state.master.at(0), 0);
  EXPECT_EQ(state.master.at(1), 1.75);
}

TEST_P(AdamwTest, NanNormShows) {
  State state = start(2);
  Array grad(DType::kFloat32, {2});
  grad.fill(1);
  Array squares(DType::kFloat32, {1});
  squares.set(0, std::numeric_limits<double>::quiet_NaN());
  adamw({.master = state.master,
         .exp_avg = state.exp_avg,
         .exp_avg_sq = state.exp_avg_sq,
         .grad = grad,
         .weight = {},
         .grad_sum_of_squares = squares,
         .options = {.lr = 0.1f, .grad_clip = 1}},
        stream_);
  EXPECT_TRUE(std::isnan(state.master.at(0)));
}

// Non-finite gradients change no state, and the amax is that of the unchanged weights.
TEST_P(AdamwTest, SkipLeavesEverythingAsItIs) {
  const State before = start(1009);
  State state = before;
  const Array weight(DType::kBFloat16, {1009});
  Array grad(DType::kFloat32, {1009});
  grad.fill(kInfinity);
  Array amax(DType::kFloat32, {1});
  amax.set(0, 0);
  Array skip(DType::kFloat32, {1});
  skip.set(0, 1);
  adamw({.master = state.master,
         .exp_avg = state.exp_avg,
         .exp_avg_sq = state.exp_avg_sq,
         .grad = grad,
         .weight = weight,
         .amax = amax,
         .grad_sum_of_squares = {},
         .skip = skip,
         .options = {.lr = 0.1f}},
        stream_);
  EXPECT_EQ(state.master.bits(), before.master.bits());
  EXPECT_EQ(state.exp_avg.bits(), before.exp_avg.bits());
  EXPECT_EQ(state.exp_avg_sq.bits(), before.exp_avg_sq.bits());
  EXPECT_EQ(amax.at(0), largest_magnitude(before.master, 0));
}

TEST_P(AdamwTest, DoesNotDependOnThreads) {
  const State first = start(1013);
  const Array grad = random(DType::kFloat32, {1013});
  expect_thread_independent([&] {
    State state = first;
    adamw({.master = state.master,
           .exp_avg = state.exp_avg,
           .exp_avg_sq = state.exp_avg_sq,
           .grad = grad,
           .weight = {},
           .grad_sum_of_squares = {},
           .options = {.lr = 0.1f}},
          stream_);
    return state.master;
  });
}

TEST_P(AdamwTest, WrongArgumentsThrow) {
  const State state = start(5);
  const Array grad = random(DType::kFloat32, {4});
  const Array good_grad = random(DType::kFloat32, {5});
  Adamw args{.master = state.master,
             .exp_avg = state.exp_avg,
             .exp_avg_sq = state.exp_avg_sq,
             .grad = grad,
             .weight = {},
             .grad_sum_of_squares = {},
             .options = {}};
  expect_error([&] { adamw(args, stream_); }, "adamw grad is float32 [4], expected float32 [5]");
  args.grad = good_grad;
  args.amax = good_grad;
  expect_error([&] { adamw(args, stream_); }, "adamw amax is float32 [5], expected float32 [1]");
  args.amax = {};
  args.options.grad_clip = 1;
  expect_error([&] { adamw(args, stream_); }, "missing, expected float32 [1]");
  args.options.grad_clip = 0;
  args.options.step = 0;
  expect_error([&] { adamw(args, stream_); }, "steps count from 1, got 0");
}

}  // namespace
}  // namespace octavo::adamw_test
