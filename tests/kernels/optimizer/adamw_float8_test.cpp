#include "kernels/optimizer/adamw_float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/optimizer/adamw.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::adamw_float8_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(MomentCodesTest, ValuesAreThoseOfFloat8) {
  for (int code = 0; code < 256; ++code) {
    const float expected = Float8E4M3::decode(static_cast<uint8_t>(code));
    const float value = e4m3_value(static_cast<uint8_t>(code));
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << code;
  }
}

// A value that a code represents keeps its code for all random bits. A value between two codes gets one of them, the
// nearer one more often.
TEST(MomentCodesTest, RoundsToItsValueOnAverage) {
  for (int code = 0; code < 0x7f; ++code) {
    const float value = e4m3_value(static_cast<uint8_t>(code));
    for (const uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
      EXPECT_EQ(random_e4m3(value, random), code);
      EXPECT_EQ(random_e4m3(-value, random), code | 0x80);
    }
  }
  std::mt19937_64 generator(7);
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3_value(static_cast<uint8_t>(code));
    const double high = e4m3_value(static_cast<uint8_t>(code + 1));
    const double share = std::uniform_real_distribution<>(0, 1)(generator);
    const auto value = static_cast<float>(low + share * (high - low));
    int above = 0;
    for (uint32_t random = 0; random < 65536; ++random) {
      const int found = random_e4m3(value, random);
      ASSERT_TRUE(found == code || found == code + 1) << code << " " << share;
      above += found - code;
    }
    EXPECT_NEAR(above / 65536.0, share, 4e-5) << code;
  }
}

TEST(MomentCodesTest, Bfloat16RoundsToItsValueOnAverage) {
  for (const float low : {1.0f, 3.0f * 0x1p-100f, 0.0f, 1e-40f}) {
    const auto word = std::bit_cast<uint32_t>(low) & 0xffff0000u;
    for (const uint32_t part : {0u, 1u, 0x4321u, 0xffffu}) {
      uint64_t above = 0;
      for (uint32_t random = 0; random < 65536; ++random) {
        above += random_bfloat16(std::bit_cast<float>(word + part), random) - (word >> 16);
      }
      EXPECT_EQ(above, part) << low;
    }
  }
}

TEST(MomentCodesTest, Extremes) {
  for (const uint32_t random : {0u, 0xffffu}) {
    EXPECT_EQ(random_e4m3(1e9f, random), 0x7e) << "saturates";
    EXPECT_EQ(random_e4m3(-449.0f, random), 0xfe);
    EXPECT_EQ(random_e4m3(kNaN, random), 0x7f);
    EXPECT_EQ(random_e4m3(kInfinity, random), 0x7f);
    EXPECT_EQ(random_bfloat16(kInfinity, random), 0x7f80);
    EXPECT_TRUE(std::isnan(bfloat16_value(random_bfloat16(kNaN, random))));
    EXPECT_TRUE(std::isnan(bfloat16_value(random_bfloat16(std::bit_cast<float>(0x7fffffffu), random))));
  }
}

// The bound is reached by gradients for which the two sums are proportional. These are g_i = (beta1 / beta2)^i, i steps
// back in time.
TEST(MomentCodesTest, Bound) {
  for (const auto& [beta1, beta2] : {std::pair{0.9, 0.95}, {0.9, 0.999}, {0.8, 0.9}, {0.0, 0.5}}) {
    double m = 0, v = 0;
    for (int i = 2000; i >= 0; --i) {
      const double g = std::pow(beta1 / beta2, i);
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
    }
    EXPECT_NEAR(m / std::sqrt(v), moment_ratio_bound(beta1, beta2), 1e-6) << beta1 << " " << beta2;
  }
  EXPECT_EQ(moment_ratio_bound(0.95, 0.9), std::numeric_limits<double>::infinity());
}

class AdamwFloat8Test : public ::testing::Test {
 protected:
  Array random(int64_t n) {
    Array array(DType::kFloat32, {n});
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < n; ++i) array.set(i, normal(generator_));
    return array;
  }
  struct State {
    explicit State(int64_t n)
        : master(DType::kFloat32, {n}), exp_avg(DType::kFloat8E4M3, {n}), exp_avg_sq(DType::kBFloat16, {n}) {
      stream().zero(exp_avg);
      stream().zero(exp_avg_sq);
    }
    static Stream stream() { return Stream::cpu(); }
    double m(int64_t i) const {
      const Tensor& codes = exp_avg;
      return moment_value(static_cast<const uint8_t*>(codes.raw())[i], exp_avg_sq.at(i));
    }
    static double moment_value(uint8_t code, double v) { return e4m3_value(code) * std::sqrt(v) / 32; }
    bool operator==(const State& other) const {
      return master.bits() == other.master.bits() && exp_avg.bits() == other.exp_avg.bits() &&
             exp_avg_sq.bits() == other.exp_avg_sq.bits();
    }
    Array master, exp_avg, exp_avg_sq;
  };
  State start(int64_t n) {
    State state(n);
    state.master = random(n);
    return state;
  }
  Adamw args(const State& state, const Array& grad, int64_t step) const {
    return {.master = state.master,
            .exp_avg = state.exp_avg,
            .exp_avg_sq = state.exp_avg_sq,
            .grad = grad,
            .weight = {},
            .grad_sum_of_squares = {},
            .options = {.lr = 0.01f, .weight_decay = 0.1f, .step = step},
            .random_key = mix_bits(static_cast<uint64_t>(step))};
  }

  Stream stream_ = Stream::cpu();
  std::mt19937_64 generator_{20250131};
};

// Each step starts from the stored state. The weights must be those of float64 arithmetic, and each moment one of the
// two codes next to the exact value.
TEST_F(AdamwFloat8Test, EveryStep) {
  for (const int64_t n : {1, 7, 1009}) {
    State state = start(n);
    for (int64_t step = 1; step <= 30; ++step) {
      const State before = state;
      const Array grad = random(n);
      const Adamw adam = args(state, grad, step);
      adamw(adam, stream_);
      const double beta1 = adam.options.beta1, beta2 = adam.options.beta2, t = static_cast<double>(step);
      for (int64_t i = 0; i < n; ++i) {
        const double g = grad.at(i), w = before.master.at(i);
        const double m = beta1 * before.m(i) + (1 - beta1) * g;
        const double v = beta2 * before.exp_avg_sq.at(i) + (1 - beta2) * g * g;
        const double update = m / (1 - std::pow(beta1, t)) / (std::sqrt(v / (1 - std::pow(beta2, t))) + 1e-8) + 0.1 * w;
        EXPECT_NEAR(state.master.at(i), w - 0.01 * update, 1e-6);
        EXPECT_NEAR(state.exp_avg_sq.at(i), v, 0x1p-7 * v);
        const double root = std::sqrt(state.exp_avg_sq.at(i));
        EXPECT_NEAR(state.m(i), m, std::max(0x1.01p-3 * std::abs(m), root * 0x1.01p-14));
      }
    }
  }
}

// The gradient is constant. A moment that always rounded to the nearest code would stop at 26/32 of it.
TEST_F(AdamwFloat8Test, MomentsReachTheGradient) {
  constexpr int64_t kCount = 20000;
  State state = start(kCount);
  Array grad(DType::kFloat32, {kCount});
  grad.fill(1);
  for (int64_t step = 1; step <= 200; ++step) adamw(args(state, grad, step), stream_);
  double m = 0, v = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    m += state.m(i) / kCount;
    v += state.exp_avg_sq.at(i) / kCount;
  }
  EXPECT_NEAR(m, 1, 0.005);
  EXPECT_NEAR(v, 1, 0.005);
}

TEST_F(AdamwFloat8Test, ZeroGradientsLeaveZeros) {
  State state(3);
  state.master.fill(0);
  Array grad(DType::kFloat32, {3});
  grad.fill(0);
  const State before = state;
  adamw(args(state, grad, 1), stream_);
  EXPECT_EQ(state, before);
}

TEST_F(AdamwFloat8Test, NanShowsAndStays) {
  State state = start(2);
  Array grad(DType::kFloat32, {2});
  grad.fill(1);
  grad.set(1, static_cast<double>(kNaN));
  adamw(args(state, grad, 1), stream_);
  EXPECT_TRUE(std::isfinite(state.master.at(0)));
  EXPECT_TRUE(std::isnan(state.master.at(1)));
  grad.set(1, 1);
  state.master.set(1, 1);
  adamw(args(state, grad, 2), stream_);
  EXPECT_TRUE(std::isnan(state.master.at(1))) << "a NaN was forgotten by the moments";
}

TEST_F(AdamwFloat8Test, SkipLeavesEverythingAsItIs) {
  State state = start(1009);
  Array grad(DType::kFloat32, {1009});
  grad.fill(1);
  adamw(args(state, grad, 1), stream_);
  const State before = state;
  Array skip(DType::kFloat32, {1}), amax(DType::kFloat32, {1});
  skip.set(0, 1);
  amax.set(0, 0);
  grad.fill(static_cast<double>(kInfinity));
  Adamw adam = args(state, grad, 2);
  adam.skip = skip;
  adam.amax = amax;
  adamw(adam, stream_);
  EXPECT_EQ(state, before);
  EXPECT_GT(amax.at(0), 0);
}

// The result does not depend on how a tensor is divided among ranks.
TEST_F(AdamwFloat8Test, SlicesAreUpdatedAlike) {
  constexpr int64_t kCount = 1009;
  const State before = start(kCount);
  State whole = before, parts = before;
  for (int64_t step = 1; step <= 3; ++step) {
    const Array grad = random(kCount);
    Adamw adam = args(whole, grad, step);
    adam.range.first_index = 12345;
    adamw(adam, stream_);
    const Adamw all = args(parts, grad, step);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 337}, {337, 338}, {338, kCount}}) {
      Adamw part = all;
      for (Tensor* tensor : {&part.master, &part.exp_avg, &part.exp_avg_sq, &part.grad}) {
        *tensor = tensor->rows(begin, end);
      }
      part.range.first_index = 12345 + begin;
      adamw(part, stream_);
    }
    EXPECT_EQ(whole, parts);
  }
}

// If a linear is divided by its inputs, a rank holds some columns of the weight.
TEST_F(AdamwFloat8Test, ColumnsAreUpdatedAlike) {
  constexpr int64_t kRows = 29, kColumns = 37;
  const State before = start(kRows * kColumns);
  const Array grad = random(kRows * kColumns);
  State whole = before;
  adamw(args(whole, grad, 1), stream_);
  for (const auto& [first, columns] : {std::pair<int64_t, int64_t>{0, 1}, {1, 5}, {6, 31}, {0, 37}}) {
    for (const int64_t begin : {0, 1, 28}) {
      const int64_t n = kRows * columns - begin;
      const auto place = [&](int64_t i) { return (begin + i) / columns * kColumns + first + (begin + i) % columns; };
      State part(n);
      Array part_grad(DType::kFloat32, {n});
      for (int64_t i = 0; i < n; ++i) {
        part.master.set(i, before.master.at(place(i)));
        part_grad.set(i, grad.at(place(i)));
      }
      Adamw adam = args(part, part_grad, 1);
      adam.range = {.first_index = first, .begin = begin, .columns = columns, .row_stride = kColumns};
      adamw(adam, stream_);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(part.m(i), whole.m(place(i))) << columns << " columns from " << begin << ": " << i;
        ASSERT_EQ(part.exp_avg_sq.at(i), whole.exp_avg_sq.at(place(i)));
        ASSERT_EQ(part.master.at(i), whole.master.at(place(i)));
      }
    }
  }
}

TEST_F(AdamwFloat8Test, EveryStepRoundsDifferently) {
  std::set<uint8_t> codes;
  for (int64_t step = 1; step <= 40; ++step) {
    State state = start(1);
    Array grad(DType::kFloat32, {1});
    grad.set(0, 1);
    Adamw adam = args(state, grad, 1);
    adam.random_key = mix_bits(static_cast<uint64_t>(step));
    adamw(adam, stream_);
    codes.insert(state.exp_avg.bits()[0]);
  }
  EXPECT_EQ(codes.size(), 2u) << "1 - beta1 over sqrt(1 - beta2) is 0.447, between two codes";
}

TEST_F(AdamwFloat8Test, ConvertsBothWays) {
  constexpr int64_t kCount = 1009;
  Array m(DType::kFloat32, {kCount}), v(DType::kFloat32, {kCount}), codes(DType::kFloat8E4M3, {kCount});
  for (int64_t i = 0; i < kCount; ++i) {
    v.set(i, std::exp2(static_cast<double>(i % 200) - 100.0));
    m.set(i, 1.1 * std::sqrt(v.at(i)) * std::sin(static_cast<double>(i)));
  }
  v.set(0, 0);
  encode_first_moment(codes, m, v);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Array back(dtype, {kCount});
    decode_first_moment(back, codes, v);
    for (int64_t i = 1; i < kCount; ++i) {
      const double root = std::sqrt(v.at(i));
      EXPECT_NEAR(back.at(i), m.at(i), std::max(0x1.1p-4 * std::abs(m.at(i)), root * 0x1.1p-15)) << i;
    }
    EXPECT_EQ(back.at(0), 0);
  }
}

}  // namespace
}  // namespace octavo::adamw_float8_test
