// Tests of the comparison in exact.h and of the bounds in exact_sdpa.h.
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
                                 "off by 0.00781, 2.00 x allowed\n  element 3 (row 1, column 1): 0.5"),
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
  expect_within(exact_sdpa_forward(shape, qkv, {}, SdpaArithmetic::kRounded).out, forward.out, DType::kBFloat16, "out");
  Array out(DType::kBFloat16, {130, shape.out_width()});
  Array lse(DType::kFloat32, {1, 4, 130});
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, forward.out.values[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < lse.size(); ++i) lse.set(i, forward.lse.values[static_cast<size_t>(i)]);
  const SdpaBackward args{
      .shape = shape, .d_qkv = {}, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = {}};
  expect_within(exact_sdpa_backward(args, SdpaArithmetic::kRounded), exact_sdpa_backward(args), DType::kBFloat16,
                "d_qkv");
}

}  // namespace
}  // namespace octavo::exact_test
