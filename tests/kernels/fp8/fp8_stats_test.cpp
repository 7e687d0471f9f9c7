#include "kernels/fp8/fp8_stats.h"

#include "tests/kernels/fp8/fp8_law.h"

namespace octavo::fp8_stats_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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
const Format kDefinitions[] = {{kE4M3, 3, -6, 448.0f}, {kE5M2, 2, -14, 57344.0f}};

// Expected statistics, computed from the definition.
struct Expected {
  Values sums = Values(Fp8Sum::kCount, 0.0);
  Values maxima = Values(Fp8Maximum::kCount, 0.0);
};

// Sets `largest` to the larger magnitude. NaN is the largest.
void raise(float& largest, float x) {
  if (!std::isnan(largest) && !(std::abs(x) <= largest)) largest = std::abs(x);
}
void raise(double& largest, float x) {
  if (!std::isnan(largest) && !(static_cast<double>(std::abs(x)) <= largest))
    largest = static_cast<double>(std::abs(x));
}

// Returns a number that is equal for elements that share a scale.
int64_t group_of(Scaling scaling, int64_t n, int64_t row, int64_t column) {
  const int64_t blocks = (n + 127) / 128;
  if (scaling == Scaling::kRow) return row;
  if (scaling == Scaling::kBlock1x128) return row * blocks + column / 128;
  if (scaling == Scaling::kBlock128x128) return row / 128 * blocks + column / 128;
  return 0;
}

// `tensor_amax` is the amax by which Scaling::kTensor scales.
Expected expected_stats(const Array& x, const Format& format, Scaling scaling, float tensor_amax) {
  const int64_t n = x.dim(1);
  std::vector<float> amaxes(static_cast<size_t>(group_of(scaling, n, x.dim(0) - 1, n - 1) + 1));
  const auto amax_of = [&](int64_t i) -> float& {
    return amaxes[static_cast<size_t>(group_of(scaling, n, i / n, i % n))];
  };
  for (int64_t i = 0; i < x.size(); ++i) raise(amax_of(i), static_cast<float>(x.at(i)));
  if (scaling == Scaling::kTensor) amaxes = {tensor_amax};
  const auto scale_of = [&](float amax) { return format.largest / (amax < 1e-12f ? 1e-12f : amax); };
  Expected expected;
  for (const float amax : amaxes) {
    raise(expected.maxima[Fp8Maximum::kScale], scale_of(amax));
    raise(expected.maxima[Fp8Maximum::kScaleInv], 1.0f / scale_of(amax));
  }
  for (int64_t i = 0; i < x.size(); ++i) {
    const bool non_zero = x.at(i) != 0;
    const double scaled = std::abs(static_cast<double>(static_cast<float>(x.at(i)) * scale_of(amax_of(i))));
    const double rounded = std::isfinite(scaled) ? format.nearest(scaled) : kNan;
    expected.sums[Fp8Sum::kElements] += 1;
    expected.sums[Fp8Sum::kNonZero] += non_zero ? 1 : 0;
    expected.sums[Fp8Sum::kSaturated] += rounded > static_cast<double>(format.largest) ? 1 : 0;
    expected.sums[Fp8Sum::kFlushed] += non_zero && rounded == 0 ? 1 : 0;
    raise(expected.maxima[Fp8Maximum::kAmax], static_cast<float>(x.at(i)));
  }
  return expected;
}

class Fp8StatsTest : public Fp8Law {
 protected:
  void SetUp() override {
    Fp8Law::SetUp();
    if (!IsSkipped()) reserve(fp8_stats_workspace_bytes(stream()));
  }

  struct Slot {
    Array sums, maxima;
  };
  Slot slot() {
    return {filled(DType::kFloat32, {Fp8Sum::kCount}, 0), filled(DType::kFloat32, {Fp8Maximum::kCount}, 0)};
  }

  // Casts x and adds the statistics of the cast to the slot.
  void add(const Slot& slot, const Array& x, DType format, Scaling scaling, float tensor_amax) {
    const Operand rows = operand(format, scaling, x.dim(0), x.dim(1));
    const Array amax = single(static_cast<double>(tensor_amax));
    quantize({.cast = {.rows = rows.view(), .amax = amax}, .x = x}, stream());
    fp8_stats({.sums = slot.sums, .maxima = slot.maxima, .rows = rows.view(), .x = x, .amax = amax}, stream());
  }

  // Adds the statistics of two tensors to one slot.
  void check(const Array& x, const Format& format, Scaling scaling, float amax) {
    SCOPED_TRACE(fmt::format("{} to {}, scaling {}, amax {}", x.host().describe(), dtype_name(format.dtype),
                             traits(scaling).name, amax));
    const Array ones = filled(dtype(), {3, 16}, 1);
    const Expected a = expected_stats(x, format, scaling, amax), b = expected_stats(ones, format, scaling, 8);
    const Slot both = slot();
    add(both, x, format.dtype, scaling, amax);
    add(both, ones, format.dtype, scaling, 8);
    EXPECT_EQ(both.sums.values(), sum_of(a.sums, b.sums));
    for (size_t i = 0; i < a.maxima.size(); ++i) {
      const double found = both.maxima.at(static_cast<int64_t>(i));
      const double expected = std::isnan(a.maxima[i]) ? a.maxima[i] : std::max(a.maxima[i], b.maxima[i]);
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(found) : found == expected || std::abs(found / expected - 1) < 1e-6)
          << "maximum " << i << " is " << found << ", expected " << expected;
    }
  }

  // Returns the statistics of one value, whose row is filled with 15 zeros.
  Values stats_of(float value, DType format, float amax) {
    Array x = filled(dtype(), {1, 16}, 0);
    x.set(0, static_cast<double>(value));
    const Slot own = slot();
    add(own, x, format, Scaling::kTensor, amax);
    return own.sums.values();
  }

  // Returns values that span many powers of two, with some positive and negative zeros.
  Array varied_with_zeros(int64_t m, int64_t n) {
    Array x = varied(m, n, 43);
    for (int64_t i = 3; i < x.size(); i += 11) x.set(i, -0.0 * x.at(i));
    return x;
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(Fp8StatsTest);

// The tensor is scaled by its own amax, by a smaller one and by a much larger one, as delayed scaling may do.
TEST_P(Fp8StatsTest, ByDefinition) {
  struct Size {
    int64_t m, n;
  };
  // On GPUs operands have multiples of 16 columns, as the config requires.
  const std::vector<Size> of_cpu = {{1, 1}, {1, 300}, {259, 1}, {7, 131}, {128, 128}, {129, 257}, {48, 640}};
  const std::vector<Size> of_gpu = {{16, 16}, {16, 1008}, {1008, 16}, {144, 272}, {272, 144}, {1040, 1296}};
  for (const auto& [m, n] : on_gpu() ? of_gpu : of_cpu) {
    const Array x = varied_with_zeros(m, n);
    const auto own = static_cast<float>(largest_magnitude(x, 0));
    for (const Format& format : kDefinitions) {
      for (const Scaling scaling : kEveryScaling) check(x, format, scaling, own);
      for (const float amax : {own * 0.01f, own * 1e4f}) check(x, format, Scaling::kTensor, amax);
    }
  }
}

// NaN and infinity show in the maxima of the amax and of the scales.
TEST_P(Fp8StatsTest, EveryBfloat16Pattern) {
  const Array x = every_bfloat16();
  for (const Format& format : kDefinitions) {
    for (const Scaling scaling : kEveryScaling) check(x, format, scaling, 448.0f);
    for (const float amax : {0.0f, 57344.0f, 3e-5f, 3e38f, kInfinity, kNan}) check(x, format, Scaling::kTensor, amax);
  }
}

TEST_P(Fp8StatsTest, ZerosAndOneHugeOrBrokenValue) {
  for (const float background : {0.0f, 1.0f}) {
    for (const float value : {background, 1e30f, kInfinity, kNan}) {
      Array x = filled(dtype(), {144, 272}, static_cast<double>(background));
      x.set(0, static_cast<double>(value));
      for (const Scaling scaling : kEveryScaling) check(x, kDefinitions[1], scaling, static_cast<float>(x.at(0)));
    }
  }
}

// The test data must contain values that saturate and values that are flushed to zero.
TEST_P(Fp8StatsTest, SharesOfATensor) {
  const Array x = varied_with_zeros(64, 96);
  const auto amax = static_cast<float>(largest_magnitude(x, 0));
  const Values own = expected_stats(x, kDefinitions[0], Scaling::kTensor, amax).sums;
  const Values small = expected_stats(x, kDefinitions[0], Scaling::kTensor, amax * 0.01f).sums;
  EXPECT_EQ(own[Fp8Sum::kSaturated], 0);
  EXPECT_GT(own[Fp8Sum::kFlushed], 1000);
  EXPECT_GT(small[Fp8Sum::kSaturated], 500);
  EXPECT_LT(small[Fp8Sum::kFlushed], own[Fp8Sum::kFlushed]);
  EXPECT_EQ(own[Fp8Sum::kElements], 64 * 96);
  EXPECT_LT(own[Fp8Sum::kNonZero], 64 * 96 - 500);
}

// The amax makes the scale 1, so that the inputs are rounded without scaling.
TEST_P(Fp8StatsTest, WhereSaturationAndZeroBegin) {
  const auto e4m3 = [&](float value) { return stats_of(value, kE4M3, 448); };
  const auto e5m2 = [&](float value) { return stats_of(value, kE5M2, 57344); };
  const Values kKept = {16, 1, 0, 0};
  const Values kSaturated = {16, 1, 1, 0};
  const Values kFlushed = {16, 1, 0, 1};
  const Values kZero = {16, 0, 0, 0};
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

TEST_P(Fp8StatsTest, IsReproducible) {
  const Array x = varied_with_zeros(304, 160);
  for (const Scaling scaling : kEveryScaling) {
    for (const bool sums : {true, false}) {
      expect_reproducible([&] {
        const Slot own = slot();
        add(own, x, kE4M3, scaling, 1);
        return sums ? own.sums : own.maxima;
      });
    }
  }
}

TEST_P(Fp8StatsTest, WrongArgumentsThrow) {
  const Array x = random({3, 5}), data = array(kE4M3, {3, 5}), scale_inv = single(1);
  const Slot own = slot();
  Fp8Stats args{
      .sums = own.sums, .maxima = own.maxima, .rows = {data, scale_inv, Scaling::kTensor}, .x = x, .amax = {}};
  expect_error([&] { fp8_stats(args, stream()); }, "fp8_stats amax");
  args.rows.scaling = Scaling::kRow;
  expect_error([&] { fp8_stats(args, stream()); }, "fp8_stats scales");
  args.rows.data = x;
  expect_error([&] { fp8_stats(args, stream()); }, "expected float8");
  args.sums = own.maxima;
  args.rows.data = data;
  expect_error([&] { fp8_stats(args, stream()); }, "fp8_stats sums");
}

}  // namespace
}  // namespace octavo::fp8_stats_test
