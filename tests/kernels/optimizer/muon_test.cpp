// The elementwise ops of Muon. tests/model/optimizer/muon_test.cpp compares whole steps with float64.
#include "kernels/optimizer/muon.h"

#include "kernels/optimizer/newton_schulz.h"
#include "tests/kernels/law.h"

namespace octavo::muon_test {
namespace {

// The dtype is that of the update and of the matrices.
class MuonTest : public LawTest {};
INSTANTIATE_DEVICES_AND_DTYPES(MuonTest);

struct Case {
  int64_t n, offset;
};
constexpr Case kCases[] = {{1, 0}, {7, 1}, {4096, 0}, {10007, 13}};

TEST_P(MuonTest, Momentum) {
  for (const auto& [n, offset] : kCases) {
    const Array momentum = on_device(random(DType::kFloat32, {n}), offset);
    const Array grad = on_device(random(DType::kFloat32, {n}), offset);
    const Array norm = single(static_cast<double>(4 * n)), update = array(dtype(), {n}, offset);
    for (const bool skipped : {false, true}) {
      const double decay = double{0.9f}, clip = 1 / (std::sqrt(static_cast<double>(4 * n)) + 1e-6);
      Exact of_momentum(n), of_update(n);
      for (int64_t i = 0; i < n; ++i) {
        const double old = momentum.at(i), g = clip * grad.at(i), m = decay * old + g;
        const double magnitude = std::abs(g) + std::abs(decay * old);
        of_momentum.set(i, skipped ? old : m, skipped ? 0 : 8 * kFloat32Rounding * magnitude);
        of_update.set(i, skipped ? 0 : g + decay * m, skipped ? 0 : 8 * kFloat32Rounding * (std::abs(g) + magnitude));
      }
      const Array skip = single(skipped ? 1 : 0);
      muon_momentum({.momentum = momentum,
                     .update = update,
                     .grad = grad,
                     .grad_sum_of_squares = norm,
                     .skip = skip,
                     .decay = 0.9f,
                     .grad_clip = 1},
                    stream());
      expect_exact(momentum, "muon_momentum momentum", of_momentum);
      expect_exact(update, "muon_momentum update", of_update);
    }
  }
}

TEST_P(MuonTest, Rows) {
  constexpr int64_t kRows = 37, kColumns = 301, kStride = 509;
  const Array x = random({kRows * kStride}), out = array({kRows * kColumns}), squares = single(7);
  for (const bool normalizes : {false, true}) {
    Exact exact(out.size());
    for (int64_t i = 0; i < out.size(); ++i) {
      const double value = x.at(i / kColumns * kStride + i % kColumns) / (normalizes ? std::sqrt(7.0) + 1e-7 : 1);
      exact.set(i, value, normalizes ? 8 * kFloat32Rounding * std::abs(value) : 0);
    }
    muon_rows({.out = out,
               .x = x,
               .rows = kRows,
               .columns = kColumns,
               .out_stride = kColumns,
               .x_stride = kStride,
               .sum_of_squares = normalizes ? Tensor(squares) : Tensor()},
              stream());
    expect_exact(out, "muon_rows", exact);
  }
}

TEST_P(MuonTest, Polynomial) {
  for (const int64_t n : {1, 7, 8, 64, 131}) {
    const Array gram = random({n, n}), square = random(DType::kFloat32, {n, n});
    Exact exact(n * n);
    for (int64_t i = 0; i < n * n; ++i) {
      const double identity = i / n == i % n ? double{kNewtonSchulzA} : 0;
      const double linear = double{kNewtonSchulzB} * gram.at(i), quadratic = double{kNewtonSchulzC} * square.at(i);
      exact.set(i, identity + linear + quadratic,
                4 * kFloat32Rounding * (identity + std::abs(linear) + std::abs(quadratic)));
    }
    muon_polynomial({.gram = gram, .square = square}, stream());
    expect_exact(gram, "muon_polynomial", exact);
  }
}

// The weight and the amax are those of the weights after the update, or of the unchanged weights if it is skipped.
TEST_P(MuonTest, Update) {
  for (const auto& [n, offset] : kCases) {
    const Array master = on_device(random(DType::kFloat32, {n}), offset), update = on_device(random({n}), offset);
    const Array weight = array(DType::kBFloat16, {n}, offset);
    for (const bool skipped : {true, false}) {
      Exact exact(n);
      for (int64_t i = 0; i < n; ++i) {
        const double w = master.at(i), of_update = double{0.1f} * 3 * update.at(i);
        const double decayed = double{0.1f} * double{0.1f} * w;
        exact.set(i, skipped ? w : w - of_update - decayed,
                  skipped ? 0 : kFloat32Rounding * (2 * std::abs(w) + 8 * (std::abs(of_update) + std::abs(decayed))));
      }
      const Array amax = single(0), skip = single(skipped ? 1 : 0);
      const std::vector<unsigned char> before = weight.bits();
      muon_update({.master = master,
                   .update = update,
                   .weight = weight,
                   .amax = amax,
                   .skip = skip,
                   .lr = 0.1f,
                   .weight_decay = 0.1f,
                   .scale = 3},
                  stream());
      expect_exact(master, "muon_update master", exact);
      if (skipped) {
        EXPECT_EQ(weight.bits(), before);
      } else {
        expect_exact(weight, "muon_update weight", exact);
      }
      EXPECT_EQ(amax.at(0), largest_magnitude(master, 0)) << n;
    }
  }
}

}  // namespace
}  // namespace octavo::muon_test
