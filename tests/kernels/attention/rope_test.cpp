#include "kernels/attention/rope.h"

#include <complex>
#include <numbers>

#include "tests/kernels/op_fixture.h"

namespace octavo::rope_test {
namespace {

class RopeTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(RopeTest);

struct Size {
  int64_t batch, seq_len, num_heads, num_kv_heads, head_dim;
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
constexpr Size kSizes[] = {{1, 1, 1, 1, 2}, {2, 5, 3, 1, 6}, {3, 7, 4, 2, 32}, {1, 67, 6, 2, 64}};

constexpr double kTheta = 10000.0;

// Multiplies each pair (i, i + D/2), as a complex number, by exp(sign * i * position * theta^(-2i/D)).
Values definition(const Values& qkv, const Size& s, double sign) {
  Values out(qkv);
  const int64_t half = s.head_dim / 2;
  for (int64_t t = 0; t < s.batch * s.seq_len; ++t) {
    for (int64_t head = 0; head < s.num_heads + s.num_kv_heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const auto low = static_cast<size_t>(t * s.width() + head * s.head_dim + i);
        const size_t high = low + static_cast<size_t>(half);
        const double angle = static_cast<double>(t % s.seq_len) *
                             std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim));
        const std::complex<double> turned = std::complex(qkv[low], qkv[high]) * std::polar(1.0, sign * angle);
        out[low] = turned.real();
        out[high] = turned.imag();
      }
    }
  }
  return out;
}

Array table_of(int64_t seq_len, int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling = {}) {
  Array table(DType::kFloat32, {seq_len, head_dim});
  rope_table(table, theta, scaling);
  return table;
}

TEST_P(RopeTest, Forward) {
  for (const Size& s : kSizes) {
    const Array table = table_of(s.seq_len, s.head_dim, kTheta);
    const Array qkv = random({s.batch * s.seq_len, s.width()});
    const Array original = qkv;
    rope({.qkv = qkv, .table = table, .num_heads = s.num_heads, .num_kv_heads = s.num_kv_heads}, stream_);
    expect_close(qkv, definition(original.values(), s, 1), tolerance());
    // The value heads are unchanged.
    for (int64_t i = 0; i < qkv.size(); ++i) {
      if (i % s.width() >= (s.num_heads + s.num_kv_heads) * s.head_dim) {
        ASSERT_EQ(qkv.at(i), original.at(i));
      }
    }
  }
}

// The inverse rotation is the gradient, because rope is linear and orthogonal.
TEST_P(RopeTest, InverseIsTheGradient) {
  for (const Size& s : kSizes) {
    const Array table = table_of(s.seq_len, s.head_dim, kTheta);
    const Array qkv = random({s.batch * s.seq_len, s.width()});
    const Array d_out = random({s.batch * s.seq_len, s.width()});
    const Array d_qkv = d_out;
    rope({.qkv = d_qkv, .table = table, .num_heads = s.num_heads, .num_kv_heads = s.num_kv_heads, .inverse = true},
         stream_);
    expect_close(d_qkv, definition(d_out.values(), s, -1), tolerance());
    const auto f = [&](const Values& x) { return dot(d_out, definition(x, s, 1)); };
    expect_gradient(d_qkv, f, qkv, tolerance() + 1e-6, "d_qkv", qkv.size() / 100 + 1);
  }
}

// The amax covers the whole row. The largest element is in a query or key head in the first case and in a value head in
// the second.
TEST_P(RopeTest, Amax) {
  const Array table = table_of(2, 4, kTheta);
  for (const int64_t largest : {1, 22}) {
    Array qkv = random({2, 12});
    qkv.set(largest, 50.0);
    for (const double before : {0.0, 1000.0}) {
      const Array rotated = qkv;
      Array amax(DType::kFloat32, {1});
      amax.fill(before);
      rope({.qkv = rotated, .table = table, .num_heads = 1, .num_kv_heads = 1, .amax = amax}, stream_);
      EXPECT_EQ(amax.at(0), largest_magnitude(rotated, before));
    }
  }
}

TEST_P(RopeTest, DoesNotDependOnThreads) {
  const Array table = table_of(13, 16, kTheta);
  const Array qkv = random({39, 5 * 16});
  expect_thread_independent([&] {
    Array rotated = qkv;
    rope({.qkv = rotated, .table = table, .num_heads = 3, .num_kv_heads = 1}, stream_);
    return rotated;
  });
}

TEST_P(RopeTest, WrongShapesThrow) {
  const Array table = table_of(3, 4, kTheta);
  const Array qkv = random({5, 12});
  const Array narrow = random({6, 11});
  expect_error([&] { rope({.qkv = qkv, .table = table, .num_heads = 1, .num_kv_heads = 1}, stream_); },
               "5 tokens are not whole sequences of 3");
  expect_error([&] { rope({.qkv = narrow, .table = table, .num_heads = 1, .num_kv_heads = 1}, stream_); },
               "[6, 11], expected");
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
