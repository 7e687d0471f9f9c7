#include "kernels/fp8/fp8_stats.h"

#include <limits>
#include <map>

#include "tests/kernels/op_fixture.h"

namespace octavo::fp8_stats_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Scaling kScalings[] = {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128};

// Definition of an FP8 format, independent of core/float8.h. Rounding ignores the largest value, so that saturation can
// be counted.
struct Format {
  DType dtype;
  int mantissa_bits;
  int smallest_exponent;  // Smallest exponent of a normal number.
  float largest;

  double nearest(double magnitude) const {
    const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), smallest_exponent) : smallest_exponent;
    const double unit = std::ldexp(1.0, exponent - mantissa_bits);
    return std::nearbyint(magnitude / unit) * unit;  // Ties round to even.
  }
};
const Format kE4M3{DType::kFloat8E4M3, 3, -6, 448.0f};
const Format kE5M2{DType::kFloat8E5M2, 2, -14, 57344.0f};

// Expected statistics, computed from the definition.
struct Expected {
  Values sums = Values(Fp8Sum::kCount, 0.0);
  double amax = 0;
  double smallest_scale = std::numeric_limits<double>::infinity();
  double largest_scale = 0;
};

// Returns a key that is equal for elements that share a scale.
std::pair<int64_t, int64_t> scale_key(Scaling scaling, int64_t row, int64_t column) {
  switch (scaling) {
    case Scaling::kTensor:
      return {0, 0};
    case Scaling::kRow:
      return {row, 0};
    case Scaling::kBlock1x128:
      return {row, column / 128};
    case Scaling::kBlock128x128:
      return {row / 128, column / 128};
  }
  return {};
}

// Computes the statistics from the definition. `tensor_amax` is the amax by which Scaling::kTensor scales.
Expected expected_stats(const Array& x, int64_t n, const Format& format, Scaling scaling, double tensor_amax) {
  std::map<std::pair<int64_t, int64_t>, double> amaxes;
  for (int64_t i = 0; i < x.size(); ++i) {
    double& amax = amaxes[scale_key(scaling, i / n, i % n)];
    amax = scaling == Scaling::kTensor ? tensor_amax : std::max(amax, std::abs(x.at(i)));
  }
  Expected expected;
  for (const auto& [key, amax] : amaxes) {
    const double scale = static_cast<double>(format.largest) / std::max(amax, 1e-12);
    expected.smallest_scale = std::min(expected.smallest_scale, scale);
    expected.largest_scale = std::max(expected.largest_scale, scale);
  }
  for (int64_t i = 0; i < x.size(); ++i) {
    const double amax = std::max(amaxes[scale_key(scaling, i / n, i % n)], 1e-12);
    const float scale = format.largest / static_cast<float>(amax);
    const double rounded = format.nearest(std::abs(static_cast<double>(static_cast<float>(x.at(i)) * scale)));
    const bool non_zero = x.at(i) != 0;
    expected.sums[Fp8Sum::kElements] += 1;
    expected.sums[Fp8Sum::kNonZero] += non_zero ? 1 : 0;
    expected.sums[Fp8Sum::kSaturated] += rounded > static_cast<double>(format.largest) ? 1 : 0;
    expected.sums[Fp8Sum::kFlushed] += non_zero && rounded == 0 ? 1 : 0;
    expected.amax = std::max(expected.amax, std::abs(x.at(i)));
  }
  return expected;
}

class Fp8StatsTest : public OpTest {
 protected:
  struct Slot {
    Array sums{DType::kFloat32, {Fp8Sum::kCount}};
    Array maxima{DType::kFloat32, {Fp8Maximum::kCount}};
    Slot() {
      sums.fill(0);
      maxima.fill(0);
    }
  };

  // Casts x and adds the statistics of the cast to the slot.
  void add(const Slot& slot, const Array& x, DType format, Scaling scaling, double tensor_amax) {
    const Tensor& view = x;
    const int64_t m = view.dim(0);
    const int64_t n = view.dim(1);
    const Array data(format, {m, n});
    const Array scale_inv(DType::kFloat32, {fp8_scale_count(scaling, m, n)});
    Array amax(DType::kFloat32, {1});
    amax.set(0, tensor_amax);
    const Fp8Operand rows{data, scale_inv, scaling};
    quantize({.cast = {.rows = rows, .amax = amax}, .x = x}, stream_);
    fp8_stats({.sums = slot.sums, .maxima = slot.maxima, .rows = rows, .x = x, .amax = amax}, stream_);
  }

  Values stats_of(std::initializer_list<float> values, DType format, double amax) {
    Array x(dtype(), {1, static_cast<int64_t>(values.size())});
    int64_t i = 0;
    for (const float value : values) x.set(i++, static_cast<double>(value));
    const Slot slot;
    add(slot, x, format, Scaling::kTensor, amax);
    return slot.sums.values();
  }

  // Returns values that span many powers of two, with some positive and negative zeros.
  Array varied(int64_t m, int64_t n) {
    Array x = random({m, n});
    for (int64_t i = 0; i < x.size(); ++i) {
      x.set(i, x.at(i) * (i % 11 == 3 ? -0.0 : std::pow(2.0, (i / n * 3 + i % n * 5) % 43 - 21)));
    }
    return x;
  }
};
INSTANTIATE_COMPUTE_DTYPES(Fp8StatsTest);

TEST_P(Fp8StatsTest, ByDefinition) {
  struct Size {
    int64_t m, n;
  };
  for (const Format& format : {kE4M3, kE5M2}) {
    for (const auto& [m, n] : {Size{1, 1}, {1, 300}, {259, 1}, {7, 131}, {128, 128}, {129, 257}, {48, 640}}) {
      for (const Scaling scaling : kScalings) {
        // The tensor is scaled by its own amax, by a smaller one and by a much larger one, as delayed scaling may do.
        for (const double factor : {1.0, 0.01, 1e4}) {
          if (factor != 1.0 && scaling != Scaling::kTensor) continue;
          SCOPED_TRACE(fmt::format("{} {} x {}, scaling {}, amax * {}", dtype_name(format.dtype), m, n,
                                   static_cast<int>(scaling), factor));
          const Array x = varied(m, n);
          const double amax = static_cast<double>(static_cast<float>(largest_magnitude(x, 0) * factor));
          const Expected expected = expected_stats(x, n, format, scaling, amax);
          const Slot slot;
          add(slot, x, format.dtype, scaling, amax);
          EXPECT_EQ(slot.sums.values(), expected.sums);
          EXPECT_EQ(slot.maxima.at(Fp8Maximum::kAmax), expected.amax);
          EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScaleInv) * expected.smallest_scale, 1, 1e-6);
          EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScale) / expected.largest_scale, 1, 1e-6);
        }
      }
    }
  }
}

// The test data must contain values that saturate and values that are flushed to zero.
TEST_P(Fp8StatsTest, SharesOfATensor) {
  const Array x = varied(64, 96);
  const double amax = largest_magnitude(x, 0);
  const Values own = expected_stats(x, 96, kE4M3, Scaling::kTensor, amax).sums;
  const Values small = expected_stats(x, 96, kE4M3, Scaling::kTensor, amax * 0.01).sums;
  EXPECT_EQ(own[Fp8Sum::kSaturated], 0);
  EXPECT_GT(own[Fp8Sum::kFlushed], 1000);
  EXPECT_GT(small[Fp8Sum::kSaturated], 500);
  EXPECT_LT(small[Fp8Sum::kFlushed], own[Fp8Sum::kFlushed]);
  EXPECT_EQ(own[Fp8Sum::kElements], 64 * 96);
  EXPECT_LT(own[Fp8Sum::kNonZero], 64 * 96 - 500);
}

// The amax makes the scale 1, so that the inputs are rounded without scaling.
TEST_P(Fp8StatsTest, WhereSaturationAndZeroBegin) {
  const auto e4m3 = [&](float value) { return stats_of({value}, DType::kFloat8E4M3, 448); };
  const auto e5m2 = [&](float value) { return stats_of({value}, DType::kFloat8E5M2, 57344); };
  const Values kKept = {1, 1, 0, 0};
  const Values kSaturated = {1, 1, 1, 0};
  const Values kFlushed = {1, 1, 0, 1};
  const Values kZero = {1, 0, 0, 0};
  EXPECT_EQ(e4m3(448), kKept);
  EXPECT_EQ(e4m3(-464), kKept) << "halfway to the next step, to even";
  EXPECT_EQ(e4m3(466), kSaturated);
  EXPECT_EQ(e4m3(-1e30f), kSaturated);
  EXPECT_EQ(e4m3(0x1p-10f), kFlushed) << "halfway to the smallest, to even";
  EXPECT_EQ(e4m3(-0x1.02p-10f), kKept);
  EXPECT_EQ(e4m3(1e-38f), kFlushed);
  EXPECT_EQ(e4m3(-0.0f), kZero);
  EXPECT_EQ(e5m2(57344), kKept);
  EXPECT_EQ(e5m2(61184), kKept);
  EXPECT_EQ(e5m2(-61440), kSaturated) << "halfway to the next step, to even";
  EXPECT_EQ(e5m2(0x1p-17f), kFlushed);
  EXPECT_EQ(e5m2(0x1.02p-17f), kKept);
  for (const float broken : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(e4m3(broken), kKept) << "became NaN, and the amax says so";
    EXPECT_EQ(e5m2(broken), kKept);
  }
}

TEST_P(Fp8StatsTest, ZerosAndOneHugeValue) {
  Array x(dtype(), {130, 260});
  x.fill(0);
  for (const Scaling scaling : kScalings) {
    const Slot slot;
    add(slot, x, DType::kFloat8E4M3, scaling, 0);
    EXPECT_EQ(slot.sums.values(), (Values{130 * 260, 0, 0, 0}));
    EXPECT_EQ(slot.maxima.at(Fp8Maximum::kAmax), 0);
    EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScale) / 448e12, 1, 1e-6);
  }
  x.fill(1);
  x.set(0, 1e30);
  const double huge = x.at(0);
  for (const auto& [scaling, flushed] : {std::pair{Scaling::kTensor, 130 * 260 - 1},
                                         {Scaling::kRow, 259},
                                         {Scaling::kBlock1x128, 127},
                                         {Scaling::kBlock128x128, 128 * 128 - 1}}) {
    const Slot slot;
    add(slot, x, DType::kFloat8E5M2, scaling, huge);
    EXPECT_EQ(slot.sums.values(), (Values{130 * 260, 130 * 260, 0, static_cast<double>(flushed)}));
    EXPECT_EQ(slot.maxima.at(Fp8Maximum::kAmax), huge);
    EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScaleInv) * 57344 / huge, 1, 1e-6);
    EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScale) / (scaling == Scaling::kTensor ? 57344 / huge : 57344), 1, 1e-6);
  }
}

TEST_P(Fp8StatsTest, BrokenValueShowsInTheMaxima) {
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    Array x = random({130, 300});
    x.set(5 * 300 + 7, static_cast<double>(broken));
    for (const Scaling scaling : kScalings) {
      const Slot slot;
      add(slot, x, DType::kFloat8E4M3, scaling, static_cast<double>(broken));
      EXPECT_EQ(std::isnan(slot.maxima.at(Fp8Maximum::kAmax)), std::isnan(broken));
      EXPECT_FALSE(std::isfinite(slot.maxima.at(Fp8Maximum::kAmax)));
      EXPECT_FALSE(std::isfinite(slot.maxima.at(Fp8Maximum::kScaleInv)));
      EXPECT_EQ(slot.sums.at(Fp8Sum::kElements), 130 * 300);
      EXPECT_EQ(slot.sums.at(Fp8Sum::kSaturated), 0);
    }
  }
}

TEST_P(Fp8StatsTest, Accumulates) {
  const Array a = varied(33, 65);
  const Array b = varied(48, 16);
  const double amax = largest_magnitude(a, 0);
  const Slot slot;
  add(slot, a, DType::kFloat8E4M3, Scaling::kTensor, amax);
  add(slot, b, DType::kFloat8E4M3, Scaling::kTensor, amax * 0.01);
  EXPECT_EQ(slot.sums.values(), sum_of(expected_stats(a, 65, kE4M3, Scaling::kTensor, amax).sums,
                                       expected_stats(b, 16, kE4M3, Scaling::kTensor, amax * 0.01).sums));
  EXPECT_EQ(slot.maxima.at(Fp8Maximum::kAmax), largest_magnitude(b, amax));
  EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScaleInv) * 448 / amax, 1, 1e-6);
  EXPECT_NEAR(slot.maxima.at(Fp8Maximum::kScale) * amax * 0.01 / 448, 1, 1e-6);
}

TEST_P(Fp8StatsTest, DoesNotDependOnThreads) {
  const Array x = varied(300, 150);
  for (const Scaling scaling : kScalings) {
    for (const bool sums : {true, false}) {
      expect_thread_independent([&] {
        const Slot slot;
        add(slot, x, DType::kFloat8E4M3, scaling, 1.0);
        return sums ? slot.sums : slot.maxima;
      });
    }
  }
}

TEST_P(Fp8StatsTest, WrongArgumentsThrow) {
  const Array x = random({3, 5});
  const Array data(DType::kFloat8E4M3, {3, 5});
  const Array scale_inv(DType::kFloat32, {1});
  const Slot slot;
  Fp8Stats args{
      .sums = slot.sums, .maxima = slot.maxima, .rows = {data, scale_inv, Scaling::kTensor}, .x = x, .amax = {}};
  expect_error([&] { fp8_stats(args, stream_); }, "fp8_stats amax");
  args.rows.scaling = Scaling::kRow;
  expect_error([&] { fp8_stats(args, stream_); }, "fp8_stats scales");
  args.rows.data = x;
  expect_error([&] { fp8_stats(args, stream_); }, "expected float8");
  args.sums = slot.maxima;
  args.rows.data = data;
  expect_error([&] { fp8_stats(args, stream_); }, "fp8_stats sums");
}

}  // namespace
}  // namespace octavo::fp8_stats_test
