// Statistics of FP8 casts on the GPU must have the bits of those on the CPU.
#include "core/error.h"
#include "kernels/fp8/fp8_stats.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_fp8_stats_test {
namespace {

constexpr Scaling kScalings[] = {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};

class Fp8StatsParity : public ComputeDtypeParity {
 protected:
  void SetUp() override {
    ComputeDtypeParity::SetUp();
    if (IsSkipped()) return;
    reserve(1, fp8_stats_workspace_bytes(gpu()));
    poison_workspace();
  }

  // Fills the workspace with ones, because an op must not assume anything about its initial content.
  void poison_workspace() {
    const std::vector<char> ones(static_cast<size_t>(gpu().workspace_bytes()), '\xff');
    gpu().copy(gpu().workspace(gpu().workspace_bytes()), ones.data(), gpu().workspace_bytes());
    gpu().synchronize();
  }

  // Fills x with normal values that span many powers of two, and some zeros.
  void fill_varied(Twin& x) {
    const int64_t n = x.cpu().dim(1);
    fill(x);
    for (int64_t i = 0; i < x.cpu().numel(); ++i) {
      const int power = static_cast<int>((i / n * 3 + i % n * 5) % 43 - 21);
      x.set(i, i % 11 == 3 ? -0.0f : x.at(i) * std::ldexp(1.0f, power));
    }
    upload(x);
  }

  void expect_equal(const Twin& twin, const char* name) {
    const std::vector<char> bytes = gpu_bytes(twin);
    const std::vector<float> values = gpu_values(twin);
    for (int64_t i = 0; i < twin.cpu().numel(); ++i) {
      EXPECT_EQ(std::memcmp(bytes.data() + 4 * i, twin.cpu().data<float>() + i, 4), 0)
          << name << " " << i << " is " << values[static_cast<size_t>(i)] << ", expected " << twin.at(i);
    }
  }

  // Adds the statistics twice, to counters that are not zero.
  void compare(const Twin& x, const Twin& amax, DType format, Scaling scaling, int64_t offset = 0) {
    const int64_t m = x.cpu().dim(0);
    const int64_t n = x.cpu().dim(1);
    SCOPED_TRACE(fmt::format("{} to {}, scaling {}, offset {}", x.cpu().describe(), dtype_name(format),
                             static_cast<int>(scaling), offset));
    const Twin data(format, {m, n}, offset);
    const Twin scale_inv(DType::kFloat32, {fp8_scale_count(scaling, m, n)});
    Twin sums(DType::kFloat32, {Fp8Sum::kCount});
    Twin maxima(DType::kFloat32, {Fp8Maximum::kCount});
    for (int64_t i = 0; i < Fp8Sum::kCount; ++i) sums.set(i, static_cast<float>(i));
    for (int64_t i = 0; i < Fp8Maximum::kCount; ++i) maxima.set(i, 0.5f);
    upload(sums);
    upload(maxima);
    on_both([&](Stream& s) {
      const Fp8Operand rows{data.on(s), scale_inv.on(s), scaling};
      quantize({.cast = {.rows = rows, .amax = amax.on(s)}, .x = x.on(s)}, s);
      for (int i = 0; i < 2; ++i) {
        fp8_stats({.sums = sums.on(s), .maxima = maxima.on(s), .rows = rows, .x = x.on(s), .amax = amax.on(s)}, s);
      }
    });
    expect_equal(sums, "sum");
    expect_equal(maxima, "maximum");
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, Fp8StatsParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(Fp8StatsParity, OddAndAlignedShapes) {
  struct Size {
    int64_t m, n;
  };
  for (const auto& [m, n] :
       {Size{1, 1}, {1, 1009}, {1009, 1}, {7, 13}, {131, 257}, {128, 128}, {272, 144}, {1040, 1296}, {144, 1000}}) {
    Twin x(dtype(), {m, n});
    Twin amax(DType::kFloat32, {1});
    fill_varied(x);
    for (const float of : {1e-3f, 100.0f, 1e7f}) {
      amax.set(0, of);
      upload(amax);
      for (const DType format : kFormats) {
        for (const Scaling scaling : kScalings) compare(x, amax, format, scaling);
      }
    }
  }
}

// In one case x does not start at a multiple of 16 bytes, in the other its cast does not.
TEST_P(Fp8StatsParity, Unaligned) {
  Twin x(dtype(), {144, 272}, 1);
  Twin aligned(dtype(), {144, 272});
  Twin amax(DType::kFloat32, {1});
  fill_varied(x);
  fill_varied(aligned);
  amax.set(0, 3.0f);
  upload(amax);
  for (const Scaling scaling : kScalings) {
    compare(x, amax, DType::kFloat8E4M3, scaling);
    compare(aligned, amax, DType::kFloat8E5M2, scaling, 1);
  }
}

// The tensor has every bfloat16 bit pattern, including NaN and infinity. The amaxes are too small, too large, zero,
// infinite and NaN.
TEST_P(Fp8StatsParity, EveryBfloat16Pattern) {
  Twin x(dtype(), {256, 256});
  for (int64_t i = 0; i < x.cpu().numel(); ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (dtype() == DType::kBFloat16) x.cpu().data<BFloat16>()[i].bits = bits;
    if (dtype() == DType::kFloat32) x.cpu().data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  upload(x);
  Twin amax(DType::kFloat32, {1});
  for (const float of : {0.0f, 448.0f, 57344.0f, 3e-5f, 3e38f, std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::quiet_NaN()}) {
    amax.set(0, of);
    upload(amax);
    for (const DType format : kFormats) {
      for (const Scaling scaling : kScalings) compare(x, amax, format, scaling);
    }
  }
}

TEST_P(Fp8StatsParity, Zeros) {
  const Twin x(dtype(), {200, 336});
  const Twin amax(DType::kFloat32, {1});
  upload(x);
  upload(amax);
  for (const Scaling scaling : kScalings) compare(x, amax, DType::kFloat8E4M3, scaling);
}

}  // namespace
}  // namespace octavo::parity_fp8_stats_test
