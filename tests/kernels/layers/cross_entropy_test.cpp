#include "kernels/layers/cross_entropy.h"

#include <limits>

#include "tests/kernels/op_fixture.h"

namespace octavo::cross_entropy_test {
namespace {

class CrossEntropyTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(CrossEntropyTest);

struct Size {
  int64_t tokens, vocab;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {11, 272}, {5, 1009}};
constexpr float kScale = 0.37f;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Values definition(const Values& logits, const Array& targets, int64_t vocab) {
  Values losses;
  for (int64_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + t * vocab;
    double total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += std::exp(row[v]);
    const auto target = static_cast<int64_t>(targets.at(t));
    losses.push_back(target == -1 ? 0 : std::log(total) - row[target]);
  }
  return losses;
}

double sum(const Values& values) {
  double total = 0;
  for (const double v : values) total += v;
  return total;
}

TEST_P(CrossEntropyTest, LossAndGradient) {
  for (const auto& [tokens, vocab] : kSizes) {
    const Array logits = random({tokens, vocab}, 3.0);
    Array targets = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    targets.set(0, static_cast<double>(vocab - 1));
    if (tokens > 1) targets.set(1, -1);
    const Array losses(DType::kFloat32, {tokens});
    const Array d_logits(dtype(), {tokens, vocab});
    cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets, .scale = kScale},
                  stream_);
    expect_close(losses, definition(logits.values(), targets, vocab), 1e-6, "losses");
    const auto f = [&, width = vocab](const Values& x) {
      return static_cast<double>(kScale) * sum(definition(x, targets, width));
    };
    expect_gradient(d_logits, f, logits, tolerance() + 1e-6, "d_logits", tokens * vocab / 300 + 1);

    const Array losses_alone(DType::kFloat32, {tokens});
    cross_entropy({.losses = losses_alone, .d_logits = {}, .logits = logits, .targets = targets, .scale = kScale},
                  stream_);
    EXPECT_EQ(losses_alone.bits(), losses.bits());
    const Array in_place = logits;
    cross_entropy(
        {.losses = losses_alone, .d_logits = in_place, .logits = in_place, .targets = targets, .scale = kScale},
        stream_);
    EXPECT_EQ(losses_alone.bits(), losses.bits());
    EXPECT_EQ(in_place.bits(), d_logits.bits());
  }
}

TEST_P(CrossEntropyTest, CastsItsGradient) {
  for (const auto& [tokens, vocab] : kSizes) {
    const Array logits = random({tokens, vocab}, 3.0);
    const Array targets = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    const Array losses(DType::kFloat32, {tokens});
    const Array d_logits(dtype(), {tokens, vocab});
    cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets, .scale = kScale},
                  stream_);
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      const Array expected(format, {tokens, vocab});
      const Array made(format, {tokens, vocab});
      const Array expected_scale(DType::kFloat32, {1});
      const Array made_scale(DType::kFloat32, {1});
      quantize({.cast = {.rows = {expected, expected_scale}, .bound = kScale}, .x = d_logits}, stream_);
      const Array losses_beside(DType::kFloat32, {tokens});
      const Array in_place = logits;
      cross_entropy({.losses = losses_beside,
                     .d_logits = in_place,
                     .logits = in_place,
                     .targets = targets,
                     .scale = kScale,
                     .cast = {.rows = {made, made_scale}, .columns = {}, .amax = {}, .bound = kScale}},
                    stream_);
      EXPECT_EQ(made.bits(), expected.bits());
      EXPECT_EQ(made_scale.bits(), expected_scale.bits());
      EXPECT_EQ(losses_beside.bits(), losses.bits());
    }
  }
  const Array logits = random({3, 16});
  const Array rows(DType::kFloat8E4M3, {3, 16});
  const Array columns(DType::kFloat8E4M3, {16, 3});
  const Array scale(DType::kFloat32, {1});
  const Array targets(DType::kInt32, {3});
  const Array losses(DType::kFloat32, {3});
  const auto with_cast = [&](const Fp8Cast& cast) {
    cross_entropy({.losses = losses, .d_logits = logits, .logits = logits, .targets = targets, .cast = cast}, stream_);
  };
  EXPECT_THROW(with_cast({.rows = {rows, scale}, .columns = {columns, scale}, .amax = {}, .bound = kScale}), Error);
  EXPECT_THROW(with_cast({.rows = {rows, scale}, .columns = {}, .amax = scale}), Error);
}

TEST_P(CrossEntropyTest, ZLoss) {
  constexpr float kZLoss = 0.05f;
  for (const auto& [tokens, vocab] : kSizes) {
    const Array logits = random({tokens, vocab}, 3.0);
    Array targets = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    if (tokens > 1) targets.set(1, -1);
    const auto z_definition = [&, width = vocab](const Values& x) {
      Values losses;
      for (int64_t t = 0; t < targets.size(); ++t) {
        double total = 0;
        for (int64_t v = 0; v < width; ++v) total += std::exp(x[static_cast<size_t>(t * width + v)]);
        losses.push_back(targets.at(t) < 0 ? 0 : static_cast<double>(kZLoss) * std::pow(std::log(total), 2));
      }
      return losses;
    };
    const Array losses(DType::kFloat32, {tokens});
    const Array z_losses(DType::kFloat32, {tokens});
    const Array d_logits(dtype(), {tokens, vocab});
    cross_entropy({.losses = losses,
                   .d_logits = d_logits,
                   .logits = logits,
                   .targets = targets,
                   .scale = kScale,
                   .z_loss = kZLoss,
                   .z_losses = z_losses},
                  stream_);
    expect_close(losses, definition(logits.values(), targets, vocab), 1e-6, "losses");
    expect_close(z_losses, z_definition(logits.values()), 1e-6, "z_losses");
    const auto f = [&, width = vocab](const Values& x) {
      return static_cast<double>(kScale) * (sum(definition(x, targets, width)) + sum(z_definition(x)));
    };
    expect_gradient(d_logits, f, logits, tolerance() + 1e-6, "d_logits", tokens * vocab / 300 + 1);
  }
}

TEST_P(CrossEntropyTest, IgnoredTargetsGiveZeros) {
  Array logits = random({2, 5});
  logits.set(1, kNan);
  Array targets(DType::kInt32, {2});
  targets.fill(-1);
  const Array losses(DType::kFloat32, {2});
  const Array d_logits(dtype(), {2, 5});
  cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets}, stream_);
  EXPECT_EQ(losses.values(), Values(2, 0.0));
  EXPECT_EQ(d_logits.values(), Values(10, 0.0));
}

TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  Array logits(dtype(), {2, 3});
  const double values[] = {30000, 29990, -30000, -20000, -20000, -30000};
  for (int64_t i = 0; i < 6; ++i) logits.set(i, values[i]);
  Array targets(DType::kInt32, {2});
  targets.fill(1);
  const Array losses(DType::kFloat32, {2});
  cross_entropy({.losses = losses, .d_logits = {}, .logits = logits, .targets = targets}, stream_);
  const double gap = logits.at(0) - logits.at(1);  // The gap after rounding to the dtype.
  // The float32 logit of 30000 has an error of up to 2^-9.
  EXPECT_NEAR(losses.at(0), gap + std::log(1 + std::exp(-gap)), 4e-3);
  EXPECT_NEAR(losses.at(1), std::log(2.0), 4e-3);
}

TEST_P(CrossEntropyTest, BrokenLogitsGiveANanLoss) {
  for (const double broken : {kNan, kInfinity}) {
    // The broken logit is that of the target, of its neighbour or of the last column.
    for (const int64_t at : {0, 2, 66}) {
      Array logits = random({1, 67});
      logits.set(at, broken);
      Array targets(DType::kInt32, {1});
      targets.fill(0);
      const Array losses(DType::kFloat32, {1});
      const Array d_logits(dtype(), {1, 67});
      cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets}, stream_);
      EXPECT_TRUE(std::isnan(losses.at(0))) << broken << " at " << at << ": " << losses.at(0);
    }
  }
}

TEST_P(CrossEntropyTest, MinusInfinityIsProbabilityZero) {
  Array logits = random({2, 7});
  logits.set(3, -kInfinity);
  logits.set(7 + 3, -kInfinity);
  Array targets(DType::kInt32, {2});
  targets.set(0, 5);
  targets.set(1, 3);
  const Array losses(DType::kFloat32, {2});
  const Array d_logits(dtype(), {2, 7});
  cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets}, stream_);
  EXPECT_NEAR(losses.at(0), definition(logits.values(), targets, 7)[0], 1e-6);
  EXPECT_NEAR(d_logits.at(3), 0, 1e-30);
  EXPECT_EQ(losses.at(1), kInfinity);
}

TEST_P(CrossEntropyTest, DoesNotDependOnThreads) {
  const Array logits = random({31, 307}, 3.0);
  const Array targets = random_integers({31}, -1, 307);
  for (const bool gradient : {false, true}) {
    expect_thread_independent([&] {
      const Array losses(DType::kFloat32, {31});
      const Array d_logits(dtype(), {31, 307});
      cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = targets}, stream_);
      return gradient ? d_logits : losses;
    });
  }
}

TEST_P(CrossEntropyTest, WrongShapesThrow) {
  const Array logits = random({3, 5});
  const Array targets = random_integers({2}, 0, 5);
  const Array losses(DType::kFloat32, {3});
  expect_error(
      [&] { cross_entropy({.losses = losses, .d_logits = {}, .logits = logits, .targets = targets}, stream_); },
      "cross_entropy targets is int32 [2], expected int32 [3]");
  const Array d_logits(dtype(), {5, 3});
  const Array good_targets = random_integers({3}, 0, 5);
  expect_error(
      [&] {
        cross_entropy({.losses = losses, .d_logits = d_logits, .logits = logits, .targets = good_targets}, stream_);
      },
      "[5, 3], expected");
}

}  // namespace
}  // namespace octavo::cross_entropy_test
