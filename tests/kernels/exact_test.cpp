// Tests of the bounds in exact.h and exact_sdpa.h: the CPU ops are within them, and a single wrong element exceeds
// them.
#include <numeric>
#include <utility>

#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/cross_entropy_parallel.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/attention/exact_sdpa.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::exact_test {
namespace {

TEST(CompareElements, UnitsInTheLastPlace) {
  EXPECT_EQ(unit_in_the_last_place(DType::kFloat32, 1.0), 0x1p-23);
  EXPECT_EQ(unit_in_the_last_place(DType::kFloat32, 1.999), 0x1p-23);
  EXPECT_EQ(unit_in_the_last_place(DType::kFloat32, 0.999), 0x1p-24);
  EXPECT_EQ(unit_in_the_last_place(DType::kBFloat16, 1.0), 0x1p-7);
  EXPECT_EQ(unit_in_the_last_place(DType::kBFloat16, 3.0), 0x1p-6);
  EXPECT_EQ(unit_in_the_last_place(DType::kFloat32, 0.0), 0x1p-150 * 1.0);
}

TEST(CompareElements, BoundsAreHalfAUnitAndTheSlack) {
  Exact exact(4);
  for (int64_t i = 0; i < 4; ++i) exact.set(i, 1.0, i < 2 ? 0.0 : 0.25);
  const Comparison good = compare_elements({1.0f + 0x1p-8f, 1.0f, 1.25f, 0.75f}, DType::kBFloat16, exact);
  EXPECT_EQ(good.wrong, 0) << good.describe(2);
  EXPECT_NEAR(good.worst_ratio, 1.0, 1e-6);
  const Comparison bad = compare_elements({1.0f + 0x1p-7f, 1.0f, 1.26f, 0.5f}, DType::kBFloat16, exact);
  EXPECT_EQ(bad.wrong, 3);
  ASSERT_EQ(bad.worst.size(), 3u);
  EXPECT_EQ(bad.worst[0].index, 0);
  EXPECT_EQ(bad.worst[1].index, 3);
  EXPECT_NE(bad.describe(2).find("3 of 4 elements out of bounds\n  element 0 (row 0, column 0): 1.0078125, expected 1, "
                                 "off by 0.00781, allowed 0.00391 (2.00 x)\n  element 3 (row 1, column 1): 0.5"),
            std::string::npos)
      << bad.describe(2);
}

TEST(CompareElements, NanAndInfinityAreWrongWhereTheyAreNotExpected) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  Exact exact(4);
  exact.set(1, static_cast<double>(nan), 0);
  exact.set(2, static_cast<double>(infinity), 0);
  exact.set(3, 1, 100);
  EXPECT_EQ(compare_elements({0.0f, nan, infinity, 1.0f}, DType::kFloat32, exact).wrong, 0);
  EXPECT_EQ(compare_elements({nan, 0.0f, -infinity, infinity}, DType::kFloat32, exact).wrong, 4);
}

// These errors are too few for the norm to detect.
TEST(CompareElements, FewWrongElementsOfAMillion) {
  constexpr int64_t kCount = 2'300'000;
  std::mt19937_64 generator(1);
  std::normal_distribution<double> normal;
  Exact exact(kCount);
  std::vector<float> values(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const BFloat16 value(static_cast<float>(normal(generator)));
    values[static_cast<size_t>(i)] = static_cast<float>(value);
    exact.set(i, static_cast<double>(static_cast<float>(value)), 0);
  }
  double error = 0;
  for (size_t i = 1; i < kCount; i += kCount / 40) {
    error += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    values[i] = 0;
  }
  EXPECT_LT(std::sqrt(error / kCount), 5e-3);
  EXPECT_EQ(compare_elements(values, DType::kBFloat16, exact).wrong, 40);
}

class ExactTest : public OpTest {
 protected:
  // Error of a single element that must be detected, as a fraction of the larger of its magnitude and the root mean
  // square of the tensor.
  double fraction() const { return dtype() == DType::kBFloat16 ? 0x1p-6 : 1e-4; }

  void check(const Tensor& result, const Exact& exact, const char* name) {
    check(floats(result), result, exact, fraction(), name);
  }
  void check(std::vector<float> values, const Tensor& like, const Exact& exact, double fraction, const char* name) {
    const Comparison comparison = compare_elements(values, like.dtype(), exact);
    ASSERT_EQ(comparison.wrong, 0) << name << ", " << like.describe() << ": " << comparison.describe(like.dim(-1));
    double squares = 0;
    for (const double value : exact.values) squares += value * value;
    const double scale = std::sqrt(squares / static_cast<double>(exact.values.size()));
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 53) {
      const float right = values[i];
      const auto step = static_cast<float>(fraction * std::max(std::abs(static_cast<double>(right)), scale));
      for (const float wrong : {right + step, right - step, std::numeric_limits<float>::quiet_NaN()}) {
        values[i] = wrong;
        const Comparison seen = compare_elements(values, like.dtype(), exact);
        EXPECT_EQ(seen.wrong, 1) << name << ", " << like.describe() << ": element " << i << ", " << right << " made "
                                 << wrong << ", allowed " << exact.slack[i];
        EXPECT_TRUE(seen.wrong != 1 || seen.worst[0].index == static_cast<int64_t>(i)) << seen.describe(like.dim(-1));
      }
      values[i] = right;
    }
  }
};
INSTANTIATE_COMPUTE_DTYPES(ExactTest);

TEST_P(ExactTest, EmbeddingBackward) {
  const Array d_out = random({700, 16});
  const Array ids = random_integers({700}, 0, 9);
  Array order(DType::kInt32, {700});
  std::vector<int32_t> positions(700);
  std::iota(positions.begin(), positions.end(), 0);
  std::stable_sort(positions.begin(), positions.end(), [&](int32_t a, int32_t b) { return ids.at(a) < ids.at(b); });
  for (int64_t i = 0; i < 700; ++i) order.set(i, positions[static_cast<size_t>(i)]);
  for (const int64_t begin : {0, 3}) {
    const Array d_table = random(DType::kFloat32, {6, 16});
    const Exact exact = exact_embedding_backward(d_table, d_out, ids, begin);
    embedding_backward({d_table, d_out, ids, order, begin}, stream_);
    check(floats(d_table), d_table, exact, 1e-4, "d_table");
  }
}

TEST_P(ExactTest, RmsNorm) {
  for (const int64_t hidden : {7, 1000}) {
    reserve(rms_norm_backward_workspace_bytes(hidden, stream_));
    const Array h = random({37, hidden}, 2.0);
    const Array weight = random({hidden}, 0.2, 1.0);
    const Array out(dtype(), {37, hidden});
    const Array rstd(DType::kFloat32, {37});
    rms_norm_forward({.out = out, .rstd = rstd, .residual_out = {}, .x = h, .residual = {}, .weight = weight}, stream_);
    const ExactRmsNorm forward = exact_rms_norm(h, weight);
    check(out, forward.out, "out");
    check(floats(rstd), rstd, forward.rstd, 1e-4, "rstd");

    const Array d_out = random({37, hidden});
    const Array d_residual = random({37, hidden});
    const Array d_weight = random(DType::kFloat32, {hidden});
    const Array d_h(dtype(), {37, hidden});
    const ExactRmsNormBackward exact = exact_rms_norm_backward(d_weight, d_out, d_residual, h, rstd, weight);
    rms_norm_backward({d_h, d_weight, d_out, d_residual, h, rstd, weight}, stream_);
    check(d_h, exact.d_h, "d_h");
    check(floats(d_weight), d_weight, exact.d_weight, 1e-4, "d_weight");
  }
}

TEST_P(ExactTest, Rope) {
  const Array table(DType::kFloat32, {11, 20});
  rope_table(table, 500000.0, RopeScaling{});
  for (const bool inverse : {false, true}) {
    const Array qkv = random({33, (3 + 2 * 2) * 20});
    const Exact exact = exact_rope(qkv, table, {3 + 2, 2, inverse});
    rope({qkv, table, 3, 2, inverse}, stream_);
    check(qkv, exact, "qkv");
  }
}

TEST_P(ExactTest, QkNormRope) {
  const int64_t width = (3 + 2 * 2) * 20;
  const Array table(DType::kFloat32, {11, 20});
  rope_table(table, 500000.0, RopeScaling{});
  const Array qkv = random({33, width}, 2.0);
  const Array q_weight = random({20}, 0.3, 1.0);
  const Array k_weight = random({20}, 0.3, 1.0);
  const Array out(dtype(), {33, width});
  const QkNormRopeForward forward{.out = out,
                                  .qkv = qkv,
                                  .table = table,
                                  .q_weight = q_weight,
                                  .k_weight = k_weight,
                                  .num_heads = 3,
                                  .num_kv_heads = 2};
  qk_norm_rope_forward(forward, stream_);
  check(out, exact_qk_norm_rope(forward), "out");

  reserve(qk_norm_rope_backward_workspace_bytes(20, stream_));
  const Array d_qkv = random({33, width});
  const Array d_q_weight = random(DType::kFloat32, {20});
  const Array d_k_weight = random(DType::kFloat32, {20});
  const QkNormRopeBackward backward{.d_qkv = d_qkv,
                                    .d_q_weight = d_q_weight,
                                    .d_k_weight = d_k_weight,
                                    .qkv = qkv,
                                    .table = table,
                                    .q_weight = q_weight,
                                    .k_weight = k_weight,
                                    .num_heads = 3,
                                    .num_kv_heads = 2};
  const ExactQkNormRopeBackward exact = exact_qk_norm_rope_backward(backward);
  qk_norm_rope_backward(backward, stream_);
  check(d_qkv, exact.d_qkv, "d_qkv");
  check(d_q_weight, exact.d_q_weight, "d_q_weight");
  check(d_k_weight, exact.d_k_weight, "d_k_weight");
}

TEST_P(ExactTest, Swiglu) {
  const Array gate_up = random({31, 2 * 129}, 4.0);
  const Array d_out = random({31, 129});
  const Array out(dtype(), {31, 129});
  const Array d_gate_up(dtype(), {31, 2 * 129});
  const ExactSwiglu exact = exact_swiglu(gate_up, d_out);
  swiglu_forward({out, gate_up}, stream_);
  swiglu_backward({d_gate_up, d_out, gate_up}, stream_);
  check(out, exact.out, "out");
  check(d_gate_up, exact.d_gate_up, "d_gate_up");
}

TEST_P(ExactTest, CrossEntropy) {
  const Array logits = random({13, 272}, 3.0);
  const Array targets = random_integers({13}, -1, 272);
  const Array losses(DType::kFloat32, {13});
  const Array z_losses(DType::kFloat32, {13});
  const Array d_logits(dtype(), {13, 272});
  for (const float z_loss : {0.0f, 0.05f}) {
    const ExactCrossEntropy exact = exact_cross_entropy({logits}, targets, 0.125, static_cast<double>(z_loss));
    cross_entropy({losses, d_logits, logits, targets, 0.125f, z_loss, z_losses}, stream_);
    check(floats(losses), losses, exact.losses, 1e-4, "losses");
    if (z_loss > 0) check(floats(z_losses), z_losses, exact.z_losses, 1e-4, "z_losses");
    check(d_logits, exact.d_logits[0], "d_logits");
  }
}

TEST_P(ExactTest, CrossEntropyInParts) {
  const Array parts[] = {random({13, 37}, 3.0), random({13, 37}, 3.0)};
  const Array targets = random_integers({13}, -1, 74);
  const Array stats(DType::kFloat32, {2, 13, kCrossEntropyStats});
  const ExactCrossEntropy exact = exact_cross_entropy({parts[0], parts[1]}, targets, 0.125);
  const auto stats_of = [&](int64_t rank) {
    return static_cast<const Tensor&>(stats).rows(rank, rank + 1).view({13, kCrossEntropyStats});
  };
  for (const int64_t rank : {0, 1}) cross_entropy_stats({stats_of(rank), parts[rank], targets, rank * 37}, stream_);
  for (const int64_t rank : {0, 1}) {
    const Array losses(DType::kFloat32, {13});
    const Array d_logits(dtype(), {13, 37});
    cross_entropy_parallel({losses, d_logits, parts[rank], targets, stats, rank * 37, 0.125f}, stream_);
    check(floats(losses), losses, exact.losses, 1e-4, "losses");
    check(d_logits, exact.d_logits[static_cast<size_t>(rank)], "d_logits");
  }
}

TEST_P(ExactTest, Adamw) {
  const Array master = random(DType::kFloat32, {1009});
  const Array exp_avg = random({1009}, 0.1);
  const Array exp_avg_sq = random({1009}, 0.1, 1.0);
  const Array grad = random(DType::kFloat32, {1009});
  const Array weight(DType::kBFloat16, {1009});
  Array norm(DType::kFloat32, {1});
  norm.set(0, 1009);
  const Adamw args{.master = master,
                   .exp_avg = exp_avg,
                   .exp_avg_sq = exp_avg_sq,
                   .grad = grad,
                   .weight = weight,
                   .grad_sum_of_squares = norm,
                   .options = {.lr = 0.01f, .weight_decay = 0.1f, .grad_clip = 1.0f, .step = 3}};
  const ExactAdamw exact = exact_adamw(args);
  adamw(args, stream_);
  check(exp_avg, exact.exp_avg, "exp_avg");
  check(exp_avg_sq, exact.exp_avg_sq, "exp_avg_sq");
  check(floats(master), master, exact.master, 1e-4, "master");
  check(floats(weight), weight, exact.master, 0x1p-6, "weight");
}

TEST_P(ExactTest, Sums) {
  const Array x = random(DType::kFloat32, {10007}, 1.0, 0.5);
  const Array total = random(DType::kFloat32, {1});
  const Exact exact = exact_sum(total, x, false);
  sum({total, x}, stream_);
  check(floats(total), total, exact, 1e-4, "sum");
  const Exact squares = exact_sum(total, x, true);
  sum_of_squares({total, x}, stream_);
  check(floats(total), total, squares, 1e-4, "sum of squares");
}

TEST_P(ExactTest, Matmul) {
  reserve(matmul_workspace_bytes(31, 33, 1001, dtype(), stream_));
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const Array a = transpose_a ? random({1001, 31}) : random({31, 1001});
      const Array b = transpose_b ? random({33, 1001}) : random({1001, 33});
      const Array d(dtype(), {31, 33});
      for (const bool accumulate : {false, true}) {
        const Matmul args{
            .d = d, .a = a, .b = b, .transpose_a = transpose_a, .transpose_b = transpose_b, .accumulate = accumulate};
        const Exact exact = exact_matmul(args);
        matmul(args, stream_);
        check(d, exact, "d");
      }
    }
  }
}

TEST_P(ExactTest, Fp8Matmul) {
  constexpr int64_t kM = 130, kN = 256, kK = 384;
  reserve(fp8_matmul_workspace_bytes(kM, kN, kK, stream_));
  for (const auto& [a_scaling, b_scaling] : {std::pair{Scaling::kTensor, Scaling::kTensor},
                                             {Scaling::kRow, Scaling::kRow},
                                             {Scaling::kBlock1x128, Scaling::kBlock1x128},
                                             {Scaling::kBlock1x128, Scaling::kBlock128x128}}) {
    Array amax(DType::kFloat32, {1});
    amax.set(0, 5.0);
    const auto operand = [&](const Array& data, const Array& scale_inv, Scaling scaling, const Array& x) {
      const Fp8Operand result{data, scale_inv, scaling};
      quantize({.cast = {.rows = result, .amax = amax}, .x = x}, stream_);
      return result;
    };
    const Array a_data(DType::kFloat8E5M2, {kM, kK});
    const Array b_data(DType::kFloat8E4M3, {kN, kK});
    const Array a_scale(DType::kFloat32, {fp8_scale_count(a_scaling, kM, kK)});
    const Array b_scale(DType::kFloat32, {fp8_scale_count(b_scaling, kN, kK)});
    const Array d(dtype(), {kM, kN});
    const Fp8Matmul args{.d = d,
                         .a = operand(a_data, a_scale, a_scaling, random({kM, kK})),
                         .b = operand(b_data, b_scale, b_scaling, random({kN, kK}))};
    const Exact exact = exact_fp8_matmul(args);
    fp8_matmul(args, stream_);
    check(floats(d), d, exact, 0.03, "d");
  }
}

TEST_P(ExactTest, Sdpa) {
  const SdpaShape shape{2, 67, 4, 2, 32};
  const Array qkv = random({2 * 67, shape.qkv_width()});
  const Array out(dtype(), {2 * 67, shape.out_width()});
  const Array lse(DType::kFloat32, {2, 4, 67});
  const Array d_out = random({2 * 67, shape.out_width()});
  const Array d_qkv(dtype(), {2 * 67, shape.qkv_width()});
  reserve(sdpa_workspace_bytes(shape, dtype(), stream_));
  sdpa_forward({.shape = shape, .out = out, .lse = lse, .qkv = qkv, .documents = {}}, stream_);
  const ExactSdpa forward = exact_sdpa_forward(shape, qkv);
  check(floats(out), out, forward.out, 0.05, "out");
  check(floats(lse), lse, forward.lse, 1e-4, "lse");
  const SdpaBackward args{
      .shape = shape, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = {}};
  sdpa_backward(args, stream_);
  check(floats(d_qkv), d_qkv, exact_sdpa_backward(args), 0.1, "d_qkv");
}

// Rounding the probabilities and their gradients to bfloat16, as tensor cores do, stays within the bounds. The bounds
// are at most 5 times as large as the largest error.
TEST(ExactSdpaTest, RoundedToBFloat16) {
  const SdpaShape shape{1, 130, 4, 2, 64};
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  const auto random = [&](const Array& array) {
    for (int64_t i = 0; i < array.size(); ++i) {
      static_cast<const Tensor&>(array).data<BFloat16>()[i] = BFloat16(normal(generator));
    }
  };
  const auto narrow = [](const Exact& exact, DType dtype) {
    std::vector<float> values;
    for (const double value : exact.values) {
      const auto rounded = static_cast<float>(value);
      values.push_back(dtype == DType::kBFloat16 ? static_cast<float>(BFloat16(rounded)) : rounded);
    }
    return values;
  };
  const auto expect_within = [&](const Exact& rounded, const Exact& exact, DType dtype, const char* name) {
    const Comparison comparison = compare_elements(narrow(rounded, dtype), dtype, exact);
    EXPECT_EQ(comparison.wrong, 0) << name << ": " << comparison.describe(1);
    EXPECT_GT(comparison.worst_ratio, 0.2) << name;
  };
  Array qkv(DType::kBFloat16, {130, shape.qkv_width()});
  Array d_out(DType::kBFloat16, {130, shape.out_width()});
  random(qkv);
  random(d_out);
  const ExactSdpa forward = exact_sdpa_forward(shape, qkv);
  expect_within(exact_sdpa_forward(shape, qkv, {}, true).out, forward.out, DType::kBFloat16, "out");
  Array out(DType::kBFloat16, {130, shape.out_width()});
  Array lse(DType::kFloat32, {1, 4, 130});
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, forward.out.values[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < lse.size(); ++i) lse.set(i, forward.lse.values[static_cast<size_t>(i)]);
  const SdpaBackward args{
      .shape = shape, .d_qkv = {}, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = {}};
  expect_within(exact_sdpa_backward(args, true), exact_sdpa_backward(args), DType::kBFloat16, "d_qkv");
}

}  // namespace
}  // namespace octavo::exact_test
