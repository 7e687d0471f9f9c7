#include "kernels/fp8/fp8.h"

#include "tests/kernels/fp8/fp8_law.h"

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
  std::vector<double> magnitudes;  // Magnitudes of the bytes from 0 to largest_byte.

  FormatDefinition(DType dtype_, int mantissa_bits_, int bias_, int largest_byte_, float largest_)
      : dtype(dtype_), mantissa_bits(mantissa_bits_), bias(bias_), largest_byte(largest_byte_), largest(largest_) {
    for (int byte = 0; byte <= largest_byte; ++byte) magnitudes.push_back(magnitude(byte));
  }

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
    const auto place = std::lower_bound(magnitudes.begin(), magnitudes.end() - 1, wanted);
    const auto above = static_cast<int>(place - magnitudes.begin());
    int best = above;
    if (above > 0) {
      const double up = *place - wanted;
      const double down = wanted - *(place - 1);
      if (down < up || (down == up && above % 2 != 0)) best = above - 1;
    }
    return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
  }
};
const FormatDefinition kDefinitions[] = {{kE4M3, 3, 7, 0x7e, 448.0f}, {kE5M2, 2, 15, 0x7b, 57344.0f}};

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
  check_every_byte<Float8E4M3>(kDefinitions[0]);
  check_every_byte<Float8E5M2>(kDefinitions[1]);
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
  check_rounding<Float8E4M3>(kDefinitions[0]);
  check_rounding<Float8E5M2>(kDefinitions[1]);
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

// Returns the larger of two magnitudes, of which NaN is the largest.
float larger(float a, float b) {
  b = std::abs(b);
  return std::isnan(a) || b <= a ? a : b;
}

class Fp8Test : public Fp8Law {
 protected:
  // On GPUs operands have multiples of 16 rows and columns, as the config requires.
  std::vector<Size> sizes() const {
    if (!on_gpu()) return {{1, 1}, {1, 300}, {259, 1}, {7, 131}, {128, 128}, {129, 257}, {48, 640}};
    return {{16, 16},    {16, 1008}, {1008, 16},   {128, 128},  {16, 2048}, {144, 272},
            {304, 1040}, {272, 144}, {1040, 1296}, {144, 1008}, {48, 640}};
  }

  static float largest_of(const Array& x) {
    float amax = 0;
    for (int64_t i = 0; i < x.size(); ++i) amax = larger(amax, static_cast<float>(x.at(i)));
    return amax;
  }
  // Returns element (row, i) of an operand, before the cast, of a matrix x or of its transpose.
  static float element_of(const Array& x, bool transposed, int64_t row, int64_t i) {
    return static_cast<float>(transposed ? x.at(i * x.dim(1) + row) : x.at(row * x.dim(1) + i));
  }
  // Returns the amaxes of the elements that share a scale. Padding has the amax 0.
  static std::vector<float> amaxes_of(const Operand& operand, const Array& x, bool transposed, float given) {
    std::vector<float> amaxes(static_cast<size_t>(operand.scale_inv.size()));
    if (operand.scaling == Scaling::kTensor) return {given};
    for (int64_t row = 0; row < operand.data.dim(0); ++row) {
      for (int64_t i = 0; i < operand.data.dim(1); ++i) {
        float& amax = amaxes[static_cast<size_t>(place_of_scale(operand.host(), row, i))];
        amax = larger(amax, element_of(x, transposed, row, i));
      }
    }
    return amaxes;
  }

  static void expect_equal(float found, float expected, const char* name, int64_t i) {
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(found) : found == expected)
        << name << " " << i << " is " << found << ", expected " << expected;
  }
  // Expects the scales of these amaxes and the bytes that they imply.
  static void expect_operand(const Operand& operand, const Array& x, bool transposed,
                             const std::vector<float>& amaxes) {
    const FormatDefinition& format = kDefinitions[operand.data.dtype() == kE4M3 ? 0 : 1];
    std::vector<float> scales;
    for (const float amax : amaxes) scales.push_back(format.largest / (amax < 1e-12f ? 1e-12f : amax));
    for (size_t s = 0; s < scales.size(); ++s) {
      const auto i = static_cast<int64_t>(s);
      expect_equal(static_cast<float>(operand.scale_inv.at(i)), 1.0f / scales[s], "scale", i);
    }
    const Fp8Operand host = operand.host();
    const int64_t k = operand.data.dim(1);
    for (int64_t i = 0; i < operand.data.size(); ++i) {
      const float scale = scales[static_cast<size_t>(place_of_scale(host, i / k, i % k))];
      ASSERT_EQ(operand.data.bits()[static_cast<size_t>(i)],
                format.nearest(element_of(x, transposed, i / k, i % k) * scale))
          << (transposed ? "columns " : "rows ") << i / k << ", " << i % k;
    }
  }

  // Casts x by an amax, or a bound, to rows, to columns and to both, and compares them with their definition.
  void check(const Array& x, DType format, Scaling scaling, float amax, bool is_bound = false) {
    SCOPED_TRACE(fmt::format("{} to {}, scaling {}, amax {}", x.host().describe(), dtype_name(format),
                             traits(scaling).name, amax));
    for (const auto& [with_rows, with_columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const Operand rows = operand(format, scaling, x.dim(0), x.dim(1));
      const Operand columns = operand(format, scaling, x.dim(1), x.dim(0));
      const Array of_x = single(amax), amax_out = single(1.5);
      Quantize args{.cast = {.rows = with_rows ? rows.view() : Fp8Operand{},
                             .columns = with_columns ? columns.view() : Fp8Operand{}},
                    .x = x,
                    .amax_out = amax_out};
      if (is_bound) args.cast.bound = amax;
      if (!is_bound) args.cast.amax = of_x;
      quantize(args, stream());
      if (with_rows) expect_operand(rows, x, false, amaxes_of(rows, x, false, amax));
      if (with_columns) expect_operand(columns, x, true, amaxes_of(columns, x, true, amax));
      expect_equal(static_cast<float>(amax_out.at(0)), larger(1.5f, largest_of(x)), "amax_out", 0);
    }
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(Fp8Test);

TEST_P(Fp8Test, EveryShape) {
  for (const auto& [m, n] : sizes()) {
    const Array x = varied(m, n);
    for (const DType format : kFloat8Formats) {
      for (const Scaling scaling : kEveryScaling) check(x, format, scaling, largest_of(x));
    }
  }
}

// The amaxes are too small, too large, zero, infinite and NaN. Large values saturate. A bound gives the scale of an
// amax of its value.
TEST_P(Fp8Test, AnyAmaxAndBound) {
  const Array x = varied(48, 160);
  for (const DType format : kFloat8Formats) {
    for (const float amax : {0.0f, 1e-20f, 0.01f, 448.0f, 57344.0f, 123.456f, 3e38f, 1e-38f, kInfinity, kNaN}) {
      check(x, format, Scaling::kTensor, amax);
    }
    for (const float bound : {0.0f, 0.25f, 3.7f}) check(x, format, Scaling::kTensor, bound, true);
  }
}

// A NaN or infinity affects the elements that share its scale, and no others.
TEST_P(Fp8Test, EveryBfloat16Pattern) {
  const Array x = every_bfloat16();
  for (const DType format : kFloat8Formats) {
    for (const Scaling scaling : kEveryScaling) check(x, format, scaling, 448.0f);
    for (const float amax : {57344.0f, 1.0f, 3e-5f, 7e20f}) check(x, format, Scaling::kTensor, amax);
  }
}

TEST_P(Fp8Test, ZerosAndOneHugeOrBrokenValue) {
  for (const float value : {0.0f, 1e30f, kInfinity, kNaN}) {
    Array x = filled(dtype(), {208, 336}, 0);
    x.set(77 * 336 + 131, static_cast<double>(value));
    for (const DType format : kFloat8Formats) {
      for (const Scaling scaling : kEveryScaling) check(x, format, scaling, largest_of(x));
    }
  }
}

// With scaling per row the passes can be separate: kMeasure writes the amaxes only, and kCast reads amaxes, which other
// ranks may have increased.
TEST_P(Fp8Test, TwoPasses) {
  for (const auto& [m, n] : sizes()) {
    Array x = varied(m, n);
    if (m > 5) x.set(5 * n, static_cast<double>(kInfinity));
    Operand rows = operand(kE4M3, Scaling::kRow, m, n), columns = operand(kE4M3, Scaling::kRow, n, m);
    const Operand untouched_rows = rows, untouched_columns = columns;
    const auto run = [&](QuantizePasses passes) {
      quantize({.cast = {.rows = rows.view(), .columns = columns.view()}, .x = x, .passes = passes}, stream());
    };
    run(QuantizePasses::kMeasure);
    EXPECT_EQ(rows.data.bits(), untouched_rows.data.bits());
    EXPECT_EQ(columns.data.bits(), untouched_columns.data.bits());
    for (Operand* operand : {&rows, &columns}) {
      std::vector<float> amaxes = amaxes_of(*operand, x, operand == &columns, 0);
      for (size_t i = 0; i < amaxes.size(); ++i) {
        const auto k = static_cast<int64_t>(i);
        ASSERT_EQ(static_cast<float>(operand->scale_inv.at(k)), amaxes[i]) << "amax " << i;
        operand->scale_inv.set(k, static_cast<double>(amaxes[i] * static_cast<float>(1 + i % 3)));
      }
    }
    const auto increased = [](const Operand& operand) { return floats(operand.scale_inv.host()); };
    const std::vector<float> of_rows = increased(rows), of_columns = increased(columns);
    run(QuantizePasses::kCast);
    expect_operand(rows, x, false, of_rows);
    expect_operand(columns, x, true, of_columns);
  }
}

// The amax never becomes smaller, and is correct wherever the largest element is. The largest size makes every thread
// of a GPU iterate.
TEST_P(Fp8Test, AmaxOfFlatTensors) {
  for (const int64_t n : {1, 7, 8, 4097, 1000003, on_gpu() ? 20000003 : 3}) {
    for (const int64_t offset : {0, 1}) {
      const Array x = on_device(random({n}), offset);
      const float largest = largest_of(x);
      for (const float before : {0.0f, 100.0f}) {
        for (const float factor : {1.0f, 0.0f, 1.1f, 2.5f}) {
          const Array out = single(before), of_x = single(factor);
          amax({out, x, factor == 1 ? Tensor() : Tensor(of_x)}, stream());
          EXPECT_EQ(out.at(0), std::max(before, factor * largest)) << n;
        }
      }
    }
  }
}

TEST_P(Fp8Test, AmaxSeesEveryElement) {
  for (const int64_t n : {3, 1000, on_gpu() ? 2200007 : 4097}) {
    Array x = on_device(filled(dtype(), {n}, 0), 3);
    for (int64_t at = 0; at < n; at += 1 + (n - at) / 3) {
      x.set(at, -2.5 - static_cast<double>(at % 7));
      const Array out = single(0);
      amax({out, x}, stream());
      EXPECT_EQ(out.at(0), std::abs(x.at(at))) << "element " << at << " of " << n;
      x.set(at, 0);
    }
  }
}

TEST_P(Fp8Test, IsReproducible) {
  const Array x = varied(304, 160), amax = single(99);
  for (const Scaling scaling : kEveryScaling) {
    expect_reproducible([&] {
      const Operand columns = operand(kE4M3, scaling, 160, 304);
      quantize({.cast = {.columns = columns.view(), .amax = amax}, .x = x}, stream());
      return columns.data;
    });
  }
}

TEST_P(Fp8Test, WrongArgumentsThrow) {
  const Array x = random({3, 5}), amax = single(1);
  const Operand rows = operand(kE4M3, Scaling::kTensor, 3, 5), columns = operand(kE5M2, Scaling::kTensor, 5, 3);
  const Operand by_row = operand(kE4M3, Scaling::kRow, 3, 5), turned = operand(kE4M3, Scaling::kRow, 5, 3);
  const auto expect = [&](const Fp8Cast& cast, const char* error, QuantizePasses passes = QuantizePasses::kAll) {
    expect_error([&] { quantize({.cast = cast, .x = x, .passes = passes}, stream()); }, error);
  };
  expect({}, "neither rows nor columns");
  expect({.rows = rows.view()}, "quantize amax");
  expect({.rows = rows.view(), .columns = columns.view(), .amax = amax}, "expected one format and scaling");
  expect({.rows = rows.view(), .columns = rows.view(), .amax = amax}, "quantize columns");
  expect({.rows = rows.view(), .amax = amax, .bound = 1.0f}, "a bound beside an amax");
  expect({.rows = by_row.view(), .bound = 1.0f}, "a bound beside an amax, or with scaling");
  expect({}, "row_amaxes: neither rows nor columns", QuantizePasses::kMeasure);
  expect({.rows = turned.view()}, "row_amaxes rows is float8_e4m3 [5, 3], expected", QuantizePasses::kMeasure);
  for (const QuantizePasses passes : {QuantizePasses::kMeasure, QuantizePasses::kCast}) {
    expect({.rows = rows.view(), .amax = amax}, "one of two passes with scaling tensor", passes);
  }
}

// ---- FP8 matrix multiplication

struct MatmulSize {
  int64_t m, n, k;
};

class Fp8MatmulTest : public Fp8Law {
 protected:
  Operand random_operand(DType format, Scaling scaling, int64_t rows, int64_t k) {
    Array x = OpTest::random({rows, k});
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * static_cast<double>(1 + i / k % 3 + i % k / 128));
    const Operand result = operand(format, scaling, rows, k);
    const Array of_x = single(5), on_this_device = on_device(x);
    quantize({.cast = {.rows = result.view(), .amax = of_x}, .x = on_this_device}, stream());
    return result;
  }

  void check(const MatmulSize& size, Scaling a_scaling, Scaling b_scaling) {
    const auto& [m, n, k] = size;
    reserve(fp8_matmul_workspace_bytes(m, n, k, stream()));
    const bool blockwise = traits(a_scaling).blockwise;
    for (const auto& [a_format, b_format] : {std::pair{kE4M3, kE4M3}, {kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
      SCOPED_TRACE(fmt::format("{} x {}, scalings {} and {}, {} x {} x {}", dtype_name(a_format), dtype_name(b_format),
                               traits(a_scaling).name, traits(b_scaling).name, m, n, k));
      const Operand a = random_operand(a_format, a_scaling, m, k), b = random_operand(b_format, b_scaling, n, k);
      for (const bool fast : {false, true}) {
        if (fast && blockwise) continue;
        const Array d = array({m, n});
        for (const bool accumulate : {false, true}) {
          const Exact exact = exact_fp8_matmul({d.host(), a.host(), b.host(), accumulate, fast});
          fp8_matmul({d, a.view(), b.view(), accumulate, fast}, stream());
          expect_exact(d, fmt::format("fp8_matmul{}{}", fast ? ", fast" : "", blockwise ? ", blockwise" : ""), exact,
                       0.05);
        }
      }
    }
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(Fp8MatmulTest);

TEST_P(Fp8MatmulTest, TensorAndRow) {
  for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow}) {
    for (const MatmulSize& size : {MatmulSize{1, 16, 16}, {17, 32, 48}, {127, 144, 272}}) check(size, scaling, scaling);
    if (!on_gpu()) continue;
    for (const MatmulSize& size : {MatmulSize{333, 256, 384}, {512, 768, 1024}}) check(size, scaling, scaling);
  }
}

TEST_P(Fp8MatmulTest, Blockwise) {
  for (const Scaling b : {Scaling::kBlock1x128, Scaling::kBlock128x128}) {
    for (const MatmulSize& size : {MatmulSize{128, 128, 128}, {100, 128, 256}}) check(size, Scaling::kBlock1x128, b);
    if (!on_gpu()) check({131, 144, 272}, Scaling::kBlock1x128, b);
    if (!on_gpu()) continue;
    for (const MatmulSize& size : {MatmulSize{256, 384, 512}, {512, 768, 1152}}) check(size, Scaling::kBlock1x128, b);
  }
}

TEST_P(Fp8MatmulTest, WrongArgumentsThrow) {
  const Array d = array({4, 16});
  const auto expect = [&](const Operand& a, const Operand& b, const char* error) {
    expect_error([&] { fp8_matmul({.d = d, .a = a.view(), .b = b.view()}, stream()); }, error);
  };
  const Operand a = operand(kE5M2, Scaling::kTensor, 4, 32);
  expect(a, operand(kE5M2, Scaling::kTensor, 16, 32), "one must be float8_e4m3");
  expect(a, operand(kE4M3, Scaling::kRow, 16, 32), "no matmul of scalings");
  expect(a, operand(kE4M3, Scaling::kTensor, 16, 48), "[16, 48], expected");
  expect(operand(kE4M3, Scaling::kTensor, 4, 17), operand(kE4M3, Scaling::kTensor, 16, 17),
         "n 16 and k 17 must be multiples of 16");
}

class Fp8MatmulOnGpu : public Fp8MatmulTest {};
INSTANTIATE_GPU(Fp8MatmulOnGpu, DType::kFloat32, DType::kBFloat16);

// The first size has few results with long sums, for which cuBLASLt prefers split-K. The second one is nearly square.
TEST_P(Fp8MatmulOnGpu, Deterministic) {
  stream_.set_deterministic(true);
  for (const auto& [m, n, k] : {MatmulSize{64, 80, 8192}, {512, 768, 1024}}) {
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128}) {
      reserve(fp8_matmul_workspace_bytes(m, n, k, stream()));
      const Operand a = random_operand(kE5M2, scaling, m, k), b = random_operand(kE4M3, scaling, n, k);
      expect_reproducible([&, m = m, n = n] {
        const Array d = array({m, n});
        fp8_matmul({.d = d, .a = a.view(), .b = b.view()}, stream());
        return d;
      });
    }
  }
}

}  // namespace
}  // namespace octavo::fp8_test
