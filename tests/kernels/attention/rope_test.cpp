#include "kernels/attention/rope.h"

#include <complex>
#include <numbers>

#include "tests/kernels/law.h"

namespace octavo::rope_test {
namespace {

struct Size {
  int64_t batch, seq_len, num_heads, num_kv_heads, head_dim;
  int64_t tokens() const { return batch * seq_len; }
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
constexpr Size kSizes[] = {{1, 1, 1, 1, 2},    {2, 5, 3, 1, 6},     {3, 37, 5, 1, 20},  {2, 101, 6, 2, 32},
                           {2, 64, 16, 8, 64}, {3, 51, 32, 8, 128}, {1, 9, 3, 3, 256},  {3, 37, 5, 1, 80},
                           {1, 41, 12, 4, 96}, {2, 31, 32, 8, 80},  {3, 17, 12, 4, 256}};

Array table_of(int64_t seq_len, int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling = {}) {
  Array table(DType::kFloat32, {seq_len, head_dim});
  rope_table(table, theta, scaling);
  return table;
}

class RopeTest : public LawTest {
 protected:
  Array device_table(const Size& s) { return on_device(table_of(s.seq_len, s.head_dim, 500000.0, RopeScaling{})); }
};
INSTANTIATE_DEVICES_AND_DTYPES(RopeTest);

// The inverse rotation is the gradient, because rope is linear and orthogonal.
TEST_P(RopeTest, ForwardAndBackward) {
  for (const Size& s : kSizes) {
    const Array table = device_table(s), qkv = random({s.tokens(), s.width()});
    for (const bool inverse : {false, true, true}) {
      const Exact exact = exact_rope(qkv.host(), table.host(), {s.num_heads + s.num_kv_heads, s.num_kv_heads, inverse});
      rope({qkv, table, s.num_heads, s.num_kv_heads, inverse}, stream());
      expect_exact(qkv, "rope qkv", exact);
    }
  }
}

// Each pair (i, i + D/2), as a complex number, is multiplied by exp(i * position * theta^(-2i/D)).
TEST(RopeFormula, RotatesPairs) {
  constexpr int64_t kHead = 6, kTokens = 10;
  const Array table = table_of(kTokens, kHead, 10000.0);
  Array qkv(DType::kFloat32, {kTokens, 3 * kHead});
  for (int64_t i = 0; i < qkv.size(); ++i) qkv.set(i, std::sin(static_cast<double>(i * i)));
  for (const bool inverse : {false, true}) {
    const Values found = exact_rope(qkv.host(), table.host(), {2, 1, inverse}).values;
    Values expected = qkv.values();
    for (int64_t t = 0; t < kTokens; ++t) {
      for (const int64_t head : {0, 1}) {
        for (int64_t i = 0; i < kHead / 2; ++i) {
          const auto low = static_cast<size_t>((t * 3 + head) * kHead + i);
          const size_t high = low + kHead / 2;
          const double angle = static_cast<double>(t) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kHead);
          const auto turned = std::complex(expected[low], expected[high]) * std::polar(1.0, inverse ? -angle : angle);
          expected[low] = turned.real();
          expected[high] = turned.imag();
        }
      }
    }
    EXPECT_LT(relative_error(found, expected), 1e-6);
  }
}

// The amax covers the whole row, in which the largest element is in a query head or the last value.
TEST_P(RopeTest, Amax) {
  for (const Size& s : kSizes) {
    const Array table = device_table(s);
    Array input = random({s.tokens(), s.width()}), qkv = input;
    const auto rotate = [&](const Tensor& amax) {
      qkv.set_bits(input.bits());
      rope({qkv, table, s.num_heads, s.num_kv_heads, false, amax}, stream());
    };
    expect_amax(qkv, rotate);
    input.set(input.size() - 1, -1000.0);
    EXPECT_EQ(amax_after(rotate), 1000.0) << s.head_dim;
    input.set(0, std::nan(""));
    EXPECT_TRUE(std::isnan(amax_after(rotate))) << s.head_dim;
  }
}

TEST_P(RopeTest, IsReproducible) {
  const Array table = on_device(table_of(13, 16, 10000.0)), qkv = random({39, 5 * 16});
  expect_reproducible([&] {
    Array rotated = qkv;
    rope({rotated, table, 3, 1}, stream());
    return rotated;
  });
}

// The other element of a pair is in the same tile of a cast, at a distance that a butterfly shuffle reaches.
TEST(RopeCast, OneKernelCastsHeadsThatDivideATile) {
  for (const int64_t head_dim : {16, 32, 64, 128}) EXPECT_TRUE(rope_casts_heads_of(head_dim)) << head_dim;
  for (const int64_t head_dim : {2, 8, 20, 48, 80, 96, 112, 192, 256}) {
    EXPECT_FALSE(rope_casts_heads_of(head_dim)) << head_dim;
  }
}

TEST_P(RopeTest, WrongShapesThrow) {
  const Array table = on_device(table_of(3, 4, 10000.0)), qkv = random({5, 12}), narrow = random({6, 11});
  expect_error([&] { rope({qkv, table, 1, 1}, stream()); }, "5 tokens are not whole sequences of 3");
  expect_error([&] { rope({narrow, table, 1, 1}, stream()); }, "[6, 11], expected");
}

TEST(RopeTable, HoldsCosinesThenSines) {
  const Array table = table_of(5000, 8, 500000.0);
  for (const int64_t p : {0, 1, 17, 4999}) {
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(p) * std::pow(500000.0, -2.0 * static_cast<double>(i) / 8);
      EXPECT_NEAR(table.at(p * 8 + i), std::cos(angle), 1e-7);
      EXPECT_NEAR(table.at(p * 8 + 4 + i), std::sin(angle), 1e-7);
    }
  }
}

// Scaling of Llama 3.1: short wavelengths are unchanged, long ones are multiplied by `factor`, and in between the
// frequency is interpolated linearly in original / wavelength.
TEST(RopeTable, Llama31Scaling) {
  const RopeScaling scaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 64};
  constexpr int64_t kHeadDim = 16;
  const Array table = table_of(2, kHeadDim, 1000.0, scaling);
  int unchanged = 0;
  int between = 0;
  int stretched = 0;
  for (int64_t i = 0; i < kHeadDim / 2; ++i) {
    const double plain = std::pow(1000.0, -2.0 * static_cast<double>(i) / kHeadDim);
    // Number of rotations of this pair over the original context length.
    const double turns = 64 * plain / (2 * std::numbers::pi);
    double expected = plain;
    if (turns > 4) {
      ++unchanged;
    } else if (turns < 1) {
      expected = plain / 8;
      ++stretched;
    } else {
      const double s = (turns - 1) / 3;
      expected = (1 - s) * plain / 8 + s * plain;
      ++between;
    }
    EXPECT_NEAR(table.at(kHeadDim + kHeadDim / 2 + i), std::sin(expected), 1e-7) << "pair " << i;
    EXPECT_NEAR(table.at(kHeadDim + i), std::cos(expected), 1e-7) << "pair " << i;
  }
  EXPECT_GT(unchanged, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(stretched, 0);
}

}  // namespace
}  // namespace octavo::rope_test
