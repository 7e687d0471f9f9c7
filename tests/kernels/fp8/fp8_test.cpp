#include "kernels/fp8/fp8.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/op_fixture.h"

namespace octavo::fp8_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float bfloat16_of(uint32_t pattern) { return std::bit_cast<float>(pattern << 16); }

// ---- The formats

// Definition of an FP8 format, independent of core/float8.h.
struct FormatDefinition {
  DType dtype;
  int mantissa_bits;
  int bias;
  int largest_byte;  // Byte of the largest finite value.
  float largest;

  // Returns the magnitude that a byte without its sign bit represents.
  double magnitude(int byte) const {
    const int exponent = byte >> mantissa_bits;
    const double fraction = static_cast<double>(byte & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
    return exponent == 0 ? fraction * std::pow(2.0, 1 - bias) : (1 + fraction) * std::pow(2.0, exponent - bias);
  }

  // Returns the byte of the nearest value. A tie goes to the even byte.
  uint8_t nearest(float x) const {
    if (!std::isfinite(x)) return 0x7f;
    const double wanted = std::abs(static_cast<double>(x));
    int above = 0;
    while (above < largest_byte && magnitude(above) < wanted) ++above;
    int best = above;
    if (above > 0) {
      const double up = magnitude(above) - wanted;
      const double down = wanted - magnitude(above - 1);
      if (down < up || (down == up && above % 2 != 0)) best = above - 1;
    }
    return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
  }
};
const FormatDefinition kE4M3{DType::kFloat8E4M3, 3, 7, 0x7e, 448.0f};
const FormatDefinition kE5M2{DType::kFloat8E5M2, 2, 15, 0x7b, 57344.0f};

template <typename Format>
void check_every_byte(const FormatDefinition& definition) {
  EXPECT_EQ(Format::max(), definition.largest);
  EXPECT_EQ(definition.magnitude(definition.largest_byte), static_cast<double>(definition.largest));
  for (int byte = 0; byte < 256; ++byte) {
    const float value = Format::decode(static_cast<uint8_t>(byte));
    const int magnitude = byte & 0x7f;
    if (magnitude > definition.largest_byte) {
      EXPECT_TRUE(std::isnan(value)) << byte;
      EXPECT_EQ(Format(value).bits, 0x7f) << byte;
      continue;
    }
    EXPECT_EQ(static_cast<double>(std::abs(value)), definition.magnitude(magnitude)) << byte;
    EXPECT_EQ(std::signbit(value), byte >= 0x80) << byte;
    EXPECT_EQ(Format(value).bits, byte);
  }
}

TEST(Float8, EveryByte) {
  check_every_byte<Float8E4M3>(kE4M3);
  check_every_byte<Float8E5M2>(kE5M2);
}

template <typename Format>
void check_rounding(const FormatDefinition& definition) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const float x = bfloat16_of(pattern);
    ASSERT_EQ(Format(x).bits, definition.nearest(x)) << "bfloat16 bits " << pattern;
  }
  // Tests the number halfway between two neighbours, and the float32 numbers just below and above it.
  for (int byte = 0; byte < definition.largest_byte; ++byte) {
    const auto middle = static_cast<float>((definition.magnitude(byte) + definition.magnitude(byte + 1)) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
      EXPECT_EQ(Format(x).bits, definition.nearest(x)) << x;
      EXPECT_EQ(Format(-x).bits, definition.nearest(-x)) << -x;
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_EQ(Format(x).bits, definition.nearest(x)) << x;
  }
}

TEST(Float8, RoundsToNearestEven) {
  check_rounding<Float8E4M3>(kE4M3);
  check_rounding<Float8E5M2>(kE5M2);
}

TEST(Float8, SaturatesAndShowsNan) {
  EXPECT_EQ(Float8E4M3(449.0f).bits, 0x7e);
  EXPECT_EQ(Float8E4M3(-1e30f).bits, 0xfe);
  EXPECT_EQ(Float8E5M2(60000.0f).bits, 0x7b);
  EXPECT_EQ(Float8E5M2(std::numeric_limits<float>::lowest()).bits, 0xfb);
  for (const float broken : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    EXPECT_EQ(Float8E4M3(broken).bits, 0x7f);
    EXPECT_EQ(Float8E5M2(broken).bits, 0x7f);
  }
  EXPECT_EQ(Float8E4M3(0x1p-10f).bits, 0);  // Half the smallest value rounds to even, that is to zero.
  EXPECT_EQ(Float8E4M3(-0.0f).bits, 0x80);
}

// ---- Quantization

struct Size {
  int64_t m, n;
};
constexpr Size kSizes[] = {{1, 1}, {1, 300}, {259, 1}, {7, 131}, {128, 128}, {129, 257}, {48, 640}};
constexpr Scaling kScalings[] = {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128};

// Owns the tensors of an FP8 operand.
struct Operand {
  Array data;
  Array scale_inv;
  Scaling scaling;
  Operand(DType format, Scaling scaling_, int64_t rows, int64_t k)
      : data(format, {rows, k}), scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, rows, k)}), scaling(scaling_) {}
  Fp8Operand view() const { return {data, scale_inv, scaling}; }
  int byte(int64_t i) const { return data.bits()[static_cast<size_t>(i)]; }
};

Array single(float value) {
  Array array(DType::kFloat32, {1});
  array.set(0, static_cast<double>(value));
  return array;
}

Array transpose(const Array& x, int64_t m, int64_t n) {
  Array out(x.dtype(), {n, m});
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) out.set(c * m + r, x.at(r * n + c));
  }
  return out;
}

class Fp8Test : public OpTest {
 protected:
  // Returns values that span many powers of two, so that the scales of groups differ.
  Array varied(int64_t m, int64_t n) {
    Array x = random({m, n});
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * std::pow(2.0, (i / n * 3 + i % n * 5) % 23 - 11));
    return x;
  }

  Operand quantize_rows(const Array& x, int64_t m, int64_t n, DType format, Scaling scaling, const Array& amax) {
    Operand rows(format, scaling, m, n);
    quantize({.cast = {.rows = rows.view(), .amax = amax}, .x = x}, stream_);
    return rows;
  }
};
INSTANTIATE_COMPUTE_DTYPES(Fp8Test);

// Expects that elements [first, first + extent) of x, cut to its shape, share the scale scale_inv[index] and have the
// bytes of the definition.
void expect_group(const Operand& operand, const Array& x, const FormatDefinition& format, const Size& size,
                  const Size& first, const Size& extent, int64_t index) {
  float amax = 0;
  const int64_t end_row = std::min(first.m + extent.m, size.m);
  const int64_t end_column = std::min(first.n + extent.n, size.n);
  for (int64_t r = first.m; r < end_row; ++r) {
    for (int64_t c = first.n; c < end_column; ++c) {
      amax = std::max(amax, static_cast<float>(std::abs(x.at(r * size.n + c))));
    }
  }
  const float scale = format.largest / std::max(amax, 1e-12f);
  ASSERT_EQ(static_cast<float>(operand.scale_inv.at(index)), 1.0f / scale) << "scale " << index;
  for (int64_t r = first.m; r < end_row; ++r) {
    for (int64_t c = first.n; c < end_column; ++c) {
      const int64_t i = r * size.n + c;
      ASSERT_EQ(operand.byte(i), format.nearest(static_cast<float>(x.at(i)) * scale)) << r << ", " << c;
    }
  }
}

TEST_P(Fp8Test, RowsByDefinition) {
  for (const FormatDefinition& format : {kE4M3, kE5M2}) {
    for (const Size& size : kSizes) {
      const auto& [m, n] = size;
      const Array x = varied(m, n);
      const Array amax_of_x = single(0);
      amax({.out = amax_of_x, .x = x}, stream_);
      const Operand tensor = quantize_rows(x, m, n, format.dtype, Scaling::kTensor, amax_of_x);
      expect_group(tensor, x, format, size, {0, 0}, size, 0);
      const Operand row = quantize_rows(x, m, n, format.dtype, Scaling::kRow, {DType::kFloat32, {0}});
      for (int64_t r = 0; r < m; ++r) expect_group(row, x, format, size, {r, 0}, {1, n}, r);
      const Operand line = quantize_rows(x, m, n, format.dtype, Scaling::kBlock1x128, {DType::kFloat32, {0}});
      const Operand square = quantize_rows(x, m, n, format.dtype, Scaling::kBlock128x128, {DType::kFloat32, {0}});
      const int64_t square_stride = ((n + 127) / 128 + 3) / 4 * 4;
      for (int64_t c = 0; c < n; c += 128) {
        for (int64_t r = 0; r < m; ++r) expect_group(line, x, format, size, {r, c}, {1, 128}, c / 128 * m + r);
        for (int64_t r = 0; r < m; r += 128) {
          expect_group(square, x, format, size, {r, c}, {128, 128}, r / 128 * square_stride + c / 128);
        }
      }
    }
  }
}

// The column operand equals the row operand of the transpose. Requesting both at once changes neither.
TEST_P(Fp8Test, ColumnsAreTheTranspose) {
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const Scaling scaling : kScalings) {
      for (const auto& [m, n] : kSizes) {
        const Array x = varied(m, n);
        const Array amax = single(100.0f);
        const Operand rows = quantize_rows(x, m, n, format, scaling, amax);
        const Operand expected = quantize_rows(transpose(x, m, n), n, m, format, scaling, amax);
        const Operand both_rows(format, scaling, m, n);
        const Operand both_columns(format, scaling, n, m);
        quantize({.cast = {.rows = both_rows.view(), .columns = both_columns.view(), .amax = amax}, .x = x}, stream_);
        EXPECT_EQ(both_rows.data.bits(), rows.data.bits());
        EXPECT_EQ(both_rows.scale_inv.bits(), rows.scale_inv.bits());
        EXPECT_EQ(both_columns.data.bits(), expected.data.bits());
        EXPECT_EQ(both_columns.scale_inv.bits(), expected.scale_inv.bits());
        const Operand columns(format, scaling, n, m);
        quantize({.cast = {.columns = columns.view(), .amax = amax}, .x = x}, stream_);
        EXPECT_EQ(columns.data.bits(), expected.data.bits());
      }
    }
  }
}

// If the amax is below the tensor's own, as with delayed scaling, large values saturate. Infinity and NaN become NaN.
TEST_P(Fp8Test, SaturatesAndShowsNan) {
  Array x(dtype(), {1, 8});
  const float values[] = {2.0f, -300.0f, 0.5f, -0.0f, kInfinity, -kInfinity, kNaN, 1e30f};
  for (int64_t i = 0; i < 8; ++i) x.set(i, static_cast<double>(values[i]));
  const Operand q = quantize_rows(x, 1, 8, DType::kFloat8E4M3, Scaling::kTensor, single(2.0f));
  EXPECT_EQ(q.byte(0), 0x7e);
  EXPECT_EQ(q.byte(1), 0xfe);
  EXPECT_EQ(q.byte(2), kE4M3.nearest(112.0f));
  EXPECT_EQ(q.byte(3), 0x80);
  for (const int64_t i : {4, 5, 6}) EXPECT_EQ(q.byte(i), 0x7f) << i;
  EXPECT_EQ(q.byte(7), 0x7e);
}

// A bound gives the scale of an amax of the same value, and larger values saturate.
TEST_P(Fp8Test, ScalesByABoundInPlaceOfAnAmax) {
  const Array x = random({37, 48});
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const float bound : {0.0f, 0.25f, 3.7f}) {
      const Operand expected = quantize_rows(x, 37, 48, format, Scaling::kTensor, single(bound));
      const Operand transposed = quantize_rows(transpose(x, 37, 48), 48, 37, format, Scaling::kTensor, single(bound));
      const Operand rows(format, Scaling::kTensor, 37, 48);
      const Operand columns(format, Scaling::kTensor, 48, 37);
      quantize({.cast = {.rows = rows.view(), .columns = columns.view(), .bound = bound}, .x = x}, stream_);
      EXPECT_EQ(rows.data.bits(), expected.data.bits());
      EXPECT_EQ(rows.scale_inv.bits(), expected.scale_inv.bits());
      EXPECT_EQ(columns.data.bits(), transposed.data.bits());
      EXPECT_EQ(columns.scale_inv.bits(), expected.scale_inv.bits());
    }
  }
  const Operand rows(DType::kFloat8E4M3, Scaling::kTensor, 37, 48);
  const Operand by_row(DType::kFloat8E4M3, Scaling::kRow, 37, 48);
  Quantize args{.cast = {.rows = rows.view(), .amax = single(1.0f), .bound = 1.0f}, .x = x};
  expect_error([&] { quantize(args, stream_); }, "a bound beside an amax");
  args.cast.rows = by_row.view();
  args.cast.amax = {};
  expect_error([&] { quantize(args, stream_); }, "a bound beside an amax, or with scaling");
}

// A NaN or infinity affects the elements that share its scale, and no others.
TEST_P(Fp8Test, BrokenValueBreaksItsGroup) {
  for (const float broken : {kNaN, kInfinity}) {
    Array x = random({130, 300});
    x.set(5 * 300 + 7, static_cast<double>(broken));
    for (const Scaling scaling : {Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128}) {
      const Operand q = quantize_rows(x, 130, 300, DType::kFloat8E4M3, scaling, {DType::kFloat32, {0}});
      EXPECT_EQ(q.byte(5 * 300 + 7), 0x7f);
      EXPECT_EQ(q.byte(5 * 300 + 8) == 0x7f, std::isnan(broken)) << "the element shares the scale";
      EXPECT_EQ(q.byte(5 * 300 + 200) == 0x7f, std::isnan(broken) && scaling == Scaling::kRow)
          << "the element is 128 columns away";
      EXPECT_NE(q.byte(129 * 300), 0x7f);
      EXPECT_FALSE(std::isfinite(q.scale_inv.at(scaling == Scaling::kBlock128x128 ? 0 : 5)));
    }
    const Array amax_of_x = single(1.0f);
    amax({.out = amax_of_x, .x = x}, stream_);
    EXPECT_FALSE(std::isfinite(amax_of_x.at(0)));
  }
}

TEST_P(Fp8Test, ZerosAndOneHugeValue) {
  Array x(dtype(), {130, 260});
  x.fill(0);
  for (const Scaling scaling : kScalings) {
    const Operand zeros = quantize_rows(x, 130, 260, DType::kFloat8E4M3, scaling, single(0.0f));
    for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(zeros.byte(i), 0);
    EXPECT_TRUE(std::isfinite(zeros.scale_inv.at(0)));
  }
  x.fill(1);
  x.set(0, 1e30);
  for (const Scaling scaling : kScalings) {
    const Operand q = quantize_rows(x, 130, 260, DType::kFloat8E5M2, scaling, single(static_cast<float>(x.at(0))));
    EXPECT_EQ(q.byte(0), 0x7b);
    EXPECT_EQ(q.byte(1), 0) << "small values next to the huge one are flushed to zero";
    EXPECT_EQ(q.byte(129 * 260 + 259), scaling == Scaling::kTensor ? 0 : 0x7b);
  }
}

TEST_P(Fp8Test, AmaxOnlyGrows) {
  const Array x = random({33, 65});
  double largest = 0;
  for (int64_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x.at(i)));
  const Operand rows(DType::kFloat8E4M3, Scaling::kRow, 33, 65);
  for (const float before : {0.0f, 1000.0f}) {
    const Array of_amax = single(before);
    const Array of_quantize = single(before);
    amax({.out = of_amax, .x = x}, stream_);
    quantize({.cast = {.rows = rows.view()}, .x = x, .amax_out = of_quantize}, stream_);
    EXPECT_EQ(of_amax.at(0), std::max(largest, static_cast<double>(before)));
    EXPECT_EQ(of_quantize.at(0), of_amax.at(0));
    const Array with_factor = single(before);
    amax({.out = with_factor, .x = x, .factor = single(2.5f)}, stream_);
    EXPECT_EQ(with_factor.at(0), std::max(2.5f * static_cast<float>(largest), before));
  }
}

TEST_P(Fp8Test, DoesNotDependOnThreads) {
  const Array x = varied(300, 150);
  for (const Scaling scaling : kScalings) {
    expect_thread_independent([&] {
      const Operand columns(DType::kFloat8E4M3, scaling, 150, 300);
      quantize({.cast = {.columns = columns.view(), .amax = single(99.0f)}, .x = x}, stream_);
      return columns.data;
    });
  }
}

TEST_P(Fp8Test, WrongArgumentsThrow) {
  const Array x = random({3, 5});
  const Operand rows(DType::kFloat8E4M3, Scaling::kTensor, 3, 5);
  const Operand columns(DType::kFloat8E5M2, Scaling::kTensor, 5, 3);
  Quantize args{.cast = {}, .x = x};
  expect_error([&] { quantize(args, stream_); }, "neither rows nor columns");
  args.cast.rows = rows.view();
  expect_error([&] { quantize(args, stream_); }, "quantize amax");
  const Array amax = single(1.0f);
  args.cast.amax = amax;
  args.cast.columns = columns.view();
  expect_error([&] { quantize(args, stream_); }, "expected one format and scaling");
  args.cast.columns = rows.view();
  expect_error([&] { quantize(args, stream_); }, "quantize columns");
}

// ---- FP8 matrix multiplication

Values dequantized(const Operand& operand, int64_t rows, int64_t k) {
  const FormatDefinition& format = operand.data.dtype() == DType::kFloat8E4M3 ? kE4M3 : kE5M2;
  Values values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const int byte = operand.byte(r * k + i);
      int64_t scale = 0;
      if (operand.scaling == Scaling::kRow) scale = r;
      if (operand.scaling == Scaling::kBlock1x128) scale = i / 128 * rows + r;
      if (operand.scaling == Scaling::kBlock128x128) scale = r / 128 * (((k + 127) / 128 + 3) / 4 * 4) + i / 128;
      values.push_back(format.magnitude(byte & 0x7f) * (byte >= 0x80 ? -1 : 1) * operand.scale_inv.at(scale));
    }
  }
  return values;
}

Values product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k) {
  Values d;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
      d.push_back(sum);
    }
  }
  return d;
}

struct OperandKinds {
  DType a_format, b_format;
  Scaling a_scaling, b_scaling;
};

TEST_P(Fp8Test, MatmulOfTheDequantized) {
  constexpr DType kE4 = DType::kFloat8E4M3;
  constexpr DType kE5 = DType::kFloat8E5M2;
  struct ProductSize {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {ProductSize{1, 16, 16}, {13, 32, 48}, {131, 144, 272}}) {
    reserve(fp8_matmul_workspace_bytes(m, n, k, stream_));
    for (const OperandKinds& kinds : {OperandKinds{kE4, kE4, Scaling::kTensor, Scaling::kTensor},
                                      {kE5, kE4, Scaling::kTensor, Scaling::kTensor},
                                      {kE4, kE5, Scaling::kRow, Scaling::kRow},
                                      {kE5, kE4, Scaling::kBlock1x128, Scaling::kBlock128x128},
                                      {kE4, kE4, Scaling::kBlock1x128, Scaling::kBlock1x128}}) {
      const Operand a = quantize_rows(varied(m, k), m, k, kinds.a_format, kinds.a_scaling, single(5000.0f));
      const Operand b = quantize_rows(varied(n, k), n, k, kinds.b_format, kinds.b_scaling, single(5000.0f));
      const Values expected = product(dequantized(a, m, k), dequantized(b, n, k), m, n, k);
      const Array d = random({m, n});
      Fp8Matmul args{.d = d, .a = a.view(), .b = b.view()};
      fp8_matmul(args, stream_);
      expect_close(d, expected, tolerance());
      const Values once = d.values();
      args.accumulate = true;
      fp8_matmul(args, stream_);
      expect_close(d, sum_of(once, expected), tolerance(), "accumulated");
    }
  }
}

TEST_P(Fp8Test, WrongMatmulsThrow) {
  const Array d(dtype(), {4, 16});
  const auto operand = [](DType format, Scaling scaling, int64_t rows, int64_t k) {
    return Operand(format, scaling, rows, k);
  };
  const Operand a = operand(DType::kFloat8E5M2, Scaling::kTensor, 4, 32);
  const Operand b = operand(DType::kFloat8E5M2, Scaling::kTensor, 16, 32);
  expect_error([&] { fp8_matmul({.d = d, .a = a.view(), .b = b.view()}, stream_); }, "one must be float8_e4m3");
  const Operand by_row = operand(DType::kFloat8E4M3, Scaling::kRow, 16, 32);
  expect_error([&] { fp8_matmul({.d = d, .a = a.view(), .b = by_row.view()}, stream_); }, "no product of scalings");
  const Operand longer = operand(DType::kFloat8E4M3, Scaling::kTensor, 16, 48);
  expect_error([&] { fp8_matmul({.d = d, .a = a.view(), .b = longer.view()}, stream_); }, "[16, 48], expected");
  const Operand odd_a = operand(DType::kFloat8E4M3, Scaling::kTensor, 4, 17);
  const Operand odd_b = operand(DType::kFloat8E4M3, Scaling::kTensor, 16, 17);
  expect_error([&] { fp8_matmul({.d = d, .a = odd_a.view(), .b = odd_b.view()}, stream_); },
               "n 16 and k 17 must be multiples of 16");
}

}  // namespace
}  // namespace octavo::fp8_test
