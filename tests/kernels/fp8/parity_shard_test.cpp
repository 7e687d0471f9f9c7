// Ops on slices of weights and gradients: the GPU gives the bits of the CPU, wherever a slice starts and ends.
#include "core/error.h"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/math/cast.h"
#include "kernels/math/sum_terms.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_shard_test {
namespace {

constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 255, 1009, 4096, 70001};

// Offsets of two arrays from their alignment: none, equal, and different ones.
struct Offsets {
  int64_t out, x;
};
constexpr Offsets kOffsets[] = {{0, 0}, {1, 1}, {5, 5}, {15, 15}, {4, 20}, {0, 1}, {3, 0}, {16, 2}};

// The parameter is the dtype of the input.
class ShardParity : public ComputeDtypeParity {};
INSTANTIATE_TEST_SUITE_P(Ops, ShardParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(ShardParity, Fp8CastPiece) {
  Twin amax(DType::kFloat32, {1});
  for (const int64_t n : kLengths) {
    for (const auto& [out_offset, x_offset] : kOffsets) {
      Twin x(dtype(), {n}, x_offset);
      fill(x);
      if (n > 3) x.set(3, -std::numeric_limits<float>::infinity());
      if (n > 2) x.set(n - 1, std::numeric_limits<float>::quiet_NaN());
      upload(x);
      for (const DType format : kFormats) {
        for (const float value : {0.0f, 0.5f, 3.0f, std::numeric_limits<float>::quiet_NaN()}) {
          amax.set(0, value);
          upload(amax);
          Twin out(format, {n}, out_offset);
          poison(out);
          on_both([&](Stream& s) { fp8_cast_piece({out.on(s), x.on(s), amax.on(s)}, s); });
          SCOPED_TRACE(fmt::format("{} elements from {} to {}, amax {}", n, x_offset, out_offset, value));
          expect_equal_bytes(out, "fp8_cast_piece");
        }
      }
    }
  }
}

TEST_P(ShardParity, SumTerms) {
  for (const int64_t n : kLengths) {
    for (const auto& [out_offset, x_offset] : kOffsets) {
      for (const int64_t count : {1, 2, 3, 8}) {
        Twin terms(dtype(), {count * n}, x_offset);
        fill(terms, 3.0f);
        for (const auto& [sum, accumulate] :
             {std::pair{DType::kFloat32, false}, {DType::kFloat32, true}, {dtype(), false}, {dtype(), true}}) {
          Twin out(sum, {n}, out_offset);
          fill(out);
          on_both([&](Stream& s) { sum_terms({out.on(s), terms.on(s), accumulate}, s); });
          SCOPED_TRACE(fmt::format("{} terms of {} elements from {} to {}", count, n, x_offset, out_offset));
          expect_equal_bytes(out, "sum_terms");
        }
      }
    }
  }
}

TEST_P(ShardParity, Cast) {
  for (const int64_t n : kLengths) {
    for (const auto& [out_offset, x_offset] : kOffsets) {
      for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
        Twin out(to, {n}, out_offset);
        Twin x(dtype(), {n}, x_offset);
        fill(x);
        poison(out);
        on_both([&](Stream& s) { cast({out.on(s), x.on(s)}, s); });
        SCOPED_TRACE(fmt::format("{} elements from {} to {}", n, x_offset, out_offset));
        expect_equal_bytes(out, "cast");
      }
    }
  }
}

TEST_F(ParityTest, Fp8Transpose) {
  struct Size {
    int64_t m, n;
  };
  std::uniform_int_distribution<int> byte(0, 255);
  for (const auto& [m, n] :
       {Size{1, 1}, {1, 1009}, {1009, 1}, {16, 16}, {128, 128}, {131, 257}, {144, 272}, {272, 1040}, {1000, 2048}}) {
    for (const int64_t offset : {0, 1}) {
      for (const DType format : kFormats) {
        Twin x(format, {m, n}, offset);
        Twin out(format, {n, m}, offset);
        for (int64_t i = 0; i < m * n; ++i)
          static_cast<uint8_t*>(x.cpu().raw())[i] = static_cast<uint8_t>(byte(random_));
        upload(x);
        poison(out);
        on_both([&](Stream& s) { fp8_transpose({out.on(s), x.on(s)}, s); });
        expect_equal_bytes(out, "fp8_transpose");
      }
    }
  }
}

TEST_F(ParityTest, Fp8ScaleInv) {
  constexpr int kCount = 1009;
  Twin amax(DType::kFloat32, {kCount});
  Twin scale_inv(DType::kFloat32, {kCount});
  for (int i = 0; i < kCount; ++i) amax.set(i, std::ldexp(1.0f + 0.0007f * static_cast<float>(i), i % 250 - 126));
  amax.set(0, 0.0f);
  amax.set(1, std::numeric_limits<float>::infinity());
  amax.set(2, std::numeric_limits<float>::quiet_NaN());
  upload(amax);
  for (const DType format : kFormats) {
    poison(scale_inv);
    on_both([&](Stream& s) { fp8_scale_inv({scale_inv.on(s), amax.on(s), format}, s); });
    expect_equal_bytes(scale_inv, "fp8_scale_inv");
  }
}

}  // namespace
}  // namespace octavo::parity_shard_test
