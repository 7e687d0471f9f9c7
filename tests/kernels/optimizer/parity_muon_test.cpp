// The ops of Muon on the GPU compared with the CPU, and a whole iteration as in model/optimizer/muon.cpp.
#include "kernels/math/reduce.h"
#include "kernels/matmul/matmul.h"
#include "kernels/optimizer/muon.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_muon_test {
namespace {

TEST_P(ComputeDtypeParity, MuonMomentum) {
  for (const auto& [n, offset] : {std::pair<int64_t, int64_t>{1, 0}, {7, 1}, {4096, 0}, {10007, 13}}) {
    Twin momentum(DType::kFloat32, {n}, offset), grad(DType::kFloat32, {n}, offset), norm(DType::kFloat32, {1});
    Twin update(dtype(), {n}, offset), skip(DType::kFloat32, {1});
    fill(momentum);
    fill(grad);
    norm.set(0, static_cast<float>(n));
    upload(norm);
    for (const float skipped : {0.0f, 1.0f}) {
      skip.set(0, skipped);
      upload(skip);
      poison(update);
      on_both([&](Stream& s) {
        muon_momentum({.momentum = momentum.on(s),
                       .update = update.on(s),
                       .grad = grad.on(s),
                       .grad_sum_of_squares = norm.on(s),
                       .skip = skip.on(s),
                       .decay = 0.9f,
                       .grad_clip = 1},
                      s);
      });
      expect_close(momentum, "momentum", 1e-6);
      if (skipped == 1.0f) expect_equal_bytes(update, "muon_momentum");
      if (skipped == 0.0f) expect_close(update, "update", dtype() == DType::kFloat32 ? 1e-6 : 4e-3);
    }
  }
}

TEST_P(ComputeDtypeParity, MuonRows) {
  constexpr int64_t kRows = 37, kColumns = 301, kStride = 509;
  Twin x(dtype(), {kRows * kStride}), out(dtype(), {kRows * kColumns}), squares(DType::kFloat32, {1});
  fill(x);
  squares.set(0, 7.0f);
  upload(squares);
  for (const bool normalizes : {false, true}) {
    poison(out);
    on_both([&](Stream& s) {
      muon_rows({.out = out.on(s),
                 .x = x.on(s),
                 .rows = kRows,
                 .columns = kColumns,
                 .out_stride = kColumns,
                 .x_stride = kStride,
                 .sum_of_squares = normalizes ? squares.on(s) : Tensor()},
                s);
    });
    if (normalizes) {
      expect_close(out, "muon_rows", dtype() == DType::kFloat32 ? 1e-6 : 4e-3);
    } else {
      expect_equal_bytes(out, "muon_rows");
    }
  }
}

TEST_P(ComputeDtypeParity, MuonPolynomial) {
  for (const int64_t n : {1, 7, 8, 64, 131}) {
    Twin gram(dtype(), {n, n}), square(DType::kFloat32, {n, n});
    fill(gram);
    fill(square);
    on_both([&](Stream& s) { muon_polynomial({.gram = gram.on(s), .square = square.on(s)}, s); });
    expect_close(gram, "muon_polynomial", dtype() == DType::kFloat32 ? 1e-6 : 4e-3);
  }
}

TEST_P(ComputeDtypeParity, MuonUpdate) {
  for (const auto& [n, offset] : {std::pair<int64_t, int64_t>{1, 0}, {7, 1}, {4096, 0}, {10007, 13}}) {
    Twin master(DType::kFloat32, {n}, offset), update(dtype(), {n}, offset), weight(DType::kBFloat16, {n}, offset);
    Twin amax(DType::kFloat32, {1}), skip(DType::kFloat32, {1});
    fill(master);
    fill(update);
    fill(weight);
    for (const float skipped : {1.0f, 0.0f}) {
      amax.set(0, 0.0f);
      skip.set(0, skipped);
      upload(amax);
      upload(skip);
      on_both([&](Stream& s) {
        muon_update({.master = master.on(s),
                     .update = update.on(s),
                     .weight = weight.on(s),
                     .amax = amax.on(s),
                     .skip = skip.on(s),
                     .lr = 0.1f,
                     .weight_decay = 0.1f,
                     .scale = 3},
                    s);
      });
      expect_close(master, "master", 1e-6);
      expect_close(weight, "weight", 4e-3);
      float largest = 0;
      for (const float value : gpu_values(master)) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(gpu_values(amax)[0], largest) << n;
    }
  }
}

TEST_P(ComputeDtypeParity, SumOfSquaresOfThisDtype) {
  for (const int64_t n : {1, 7, 4096, 300007}) {
    Twin x(dtype(), {n}), sum(DType::kFloat32, {1});
    reserve(0, reduce_workspace_bytes(gpu()));
    fill(x);
    sum.set(0, 0.0f);
    upload(sum);
    on_both([&](Stream& s) { sum_of_squares({.out = sum.on(s), .x = x.on(s)}, s); });
    expect_close(sum, "sum_of_squares", 1e-6);
  }
}

}  // namespace
}  // namespace octavo::parity_muon_test
