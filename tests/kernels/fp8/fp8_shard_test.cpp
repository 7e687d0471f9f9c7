// Ops on slices of weights and gradients, wherever a slice starts and ends.
#include "kernels/fp8/fp8_shard.h"

#include "tests/kernels/fp8/fp8_law.h"

namespace octavo::fp8_shard_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kAmaxes[] = {0.0f, 1e-20f, 1e-12f, 0.01f, 0.5f, 3.0f, 448.0f, 3e38f, kInfinity, kNan};

struct Size {
  int64_t m, n;
};

// Returns elements [begin, end) of a flat tensor.
Tensor piece(const Array& whole, int64_t begin, int64_t end) {
  const Tensor& tensor = whole;
  auto* first = static_cast<char*>(tensor.raw()) + begin * dtype_bytes(tensor.dtype());
  return {first, tensor.dtype(), {end - begin}};
}

// The dtype is that of the tensor that is cast.
class Fp8ShardTest : public Fp8Law {};
INSTANTIATE_DEVICES_AND_DTYPES(Fp8ShardTest);

// Casting shards with arbitrary boundaries gives the bits of quantizing the whole weight.
TEST_P(Fp8ShardTest, SlicesGiveTheBitsOfQuantize) {
  const std::vector<Size> of_cpu = {{1, 1}, {1, 67}, {67, 1}, {13, 31}, {64, 48}, {130, 259}};
  const std::vector<Size> of_gpu = {{16, 16}, {64, 48}, {144, 272}};
  for (const auto& [m, n] : on_gpu() ? of_gpu : of_cpu) {
    const Array x = random({m, n});
    for (const DType format : kFloat8Formats) {
      for (const float amax : kAmaxes) {
        const Array of_x = single(static_cast<double>(amax));
        const Operand rows = operand(format, Scaling::kTensor, m, n), columns = operand(format, Scaling::kTensor, n, m);
        quantize({.cast = {.rows = rows.view(), .columns = columns.view(), .amax = of_x}, .x = x}, stream());
        const Array cast = array(format, {m, n}), transposed = array(format, {n, m}), inverse = single(0);
        for (int64_t begin = 0; begin < m * n;) {
          const int64_t end = std::min(m * n, begin + 1 + begin * 2);
          fp8_cast_piece({piece(cast, begin, end), piece(x, begin, end), of_x}, stream());
          begin = end;
        }
        EXPECT_TRUE(cast.bits() == rows.data.bits()) << m << " x " << n << ", amax " << amax;
        fp8_transpose({transposed, cast}, stream());
        EXPECT_TRUE(transposed.bits() == columns.data.bits()) << m << " x " << n;
        fp8_scale_inv({inverse, of_x, format}, stream());
        EXPECT_EQ(inverse.bits(), rows.scale_inv.bits()) << "amax " << amax;
      }
    }
  }
}

// A slice gives the bits of a slice at an aligned address.
TEST_P(Fp8ShardTest, SlicesMayStartAnywhere) {
  for (const int64_t n : kFlatLengths) {
    Array x = random({n});
    if (n > 3) x.set(3, -std::numeric_limits<double>::infinity());
    if (n > 2) x.set(n - 1, std::nan(""));
    for (const DType format : kFloat8Formats) {
      for (const float amax : {0.0f, 0.5f, 3.0f, kNan}) {
        const Array of_x = single(static_cast<double>(amax));
        const int64_t padded = n / 16 * 16 + 16;
        const Operand expected = operand(format, Scaling::kTensor, 1, padded);
        Array row = filled(dtype(), {1, padded}, 0);
        for (int64_t i = 0; i < n; ++i) row.set(i, x.at(i));
        quantize({.cast = {.rows = expected.view(), .amax = of_x}, .x = row}, stream());
        for (const auto& [out_offset, x_offset] : kFlatOffsets) {
          const Array shifted = on_device(x, x_offset), out = array(format, {n}, out_offset);
          fp8_cast_piece({out, shifted, of_x}, stream());
          EXPECT_TRUE(std::equal(out.bits().begin(), out.bits().end(), expected.data.bits().begin()))
              << n << " elements from " << x_offset << " to " << out_offset << ", amax " << amax;
        }
      }
    }
  }
}

TEST_P(Fp8ShardTest, CastLeavesNeighboursAlone) {
  const Array x = random({9}), out = array(kE4M3, {9}), amax = single(4);
  fp8_cast_piece({piece(out, 2, 7), piece(x, 2, 7), amax}, stream());
  fp8_cast_piece({piece(out, 3, 3), piece(x, 3, 3), amax}, stream());
  for (const size_t i : {0, 1, 7, 8}) EXPECT_EQ(out.bits()[i], 0xff) << i;
  for (const size_t i : {2, 3, 4, 5, 6}) EXPECT_NE(out.bits()[i], 0xff) << i;
}

TEST_P(Fp8ShardTest, Transpose) {
  const std::vector<Size> of_cpu = {{1, 1}, {1, 1009}, {1009, 1}, {16, 16}, {131, 257}};
  const std::vector<Size> of_gpu = {{16, 16}, {128, 128}, {144, 272}, {272, 1040}, {1008, 2048}};
  for (const auto& [m, n] : on_gpu() ? of_gpu : of_cpu) {
    Array x = array(kE4M3, {m, n});
    const Array out = array(kE4M3, {n, m});
    std::vector<unsigned char> bytes(static_cast<size_t>(m * n)), expected(bytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<unsigned char>(generator_());
      const auto k = static_cast<int64_t>(i);
      expected[static_cast<size_t>(k % n * m + k / n)] = bytes[i];
    }
    x.set_bits(bytes);
    fp8_transpose({out, x}, stream());
    EXPECT_TRUE(out.bits() == expected) << m << " x " << n;
  }
}

// The inverse scales may replace the amaxes.
TEST_P(Fp8ShardTest, ManyScales) {
  constexpr int64_t kCount = 1009;
  Array amax = array(DType::kFloat32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) {
    amax.set(i, std::ldexp(1.0 + 0.0007 * static_cast<double>(i), static_cast<int>(i % 250 - 126)));
  }
  for (size_t i = 0; i < std::size(kAmaxes); ++i) amax.set(static_cast<int64_t>(i), static_cast<double>(kAmaxes[i]));
  for (const DType format : kFloat8Formats) {
    const Array scale_inv = array(DType::kFloat32, {kCount}), in_place = amax;
    fp8_scale_inv({scale_inv, amax, format}, stream());
    const float largest = format == kE4M3 ? 448.0f : 57344.0f;
    for (int64_t i = 0; i < kCount; ++i) {
      const auto of = static_cast<float>(amax.at(i));
      const float expected = 1.0f / (largest / std::max(of, 1e-12f));
      EXPECT_TRUE(std::isnan(of) ? std::isnan(scale_inv.at(i)) : scale_inv.at(i) == static_cast<double>(expected))
          << of << ": " << scale_inv.at(i);
    }
    fp8_scale_inv({in_place, in_place, format}, stream());
    EXPECT_EQ(in_place.bits(), scale_inv.bits()) << "in place";
  }
}

TEST_P(Fp8ShardTest, IsReproducible) {
  const Array x = random({304 * 80}), amax = single(3);
  expect_reproducible([&] {
    const Array rows = array(kE4M3, {304, 80}), columns = array(kE4M3, {80, 304});
    fp8_cast_piece({piece(rows, 0, rows.size()), x, amax}, stream());
    fp8_transpose({columns, rows}, stream());
    return columns;
  });
}

TEST_P(Fp8ShardTest, WrongArgumentsThrow) {
  const Array x = random({6}), floats = array(DType::kFloat32, {6}), integers = array(DType::kInt32, {6});
  const Array amax = single(1), matrix = array(kE4M3, {2, 3}), other = array(kE5M2, {3, 2}), bytes = array(kE4M3, {6});
  const auto expect_cast = [&](const Array& out, const Array& from, const Tensor& of, const char* error) {
    expect_error([&] { fp8_cast_piece({out, from, of}, stream()); }, error);
  };
  expect_cast(floats, x, amax, "expected a float8 tensor");
  expect_cast(matrix, x, amax, "fp8_cast_piece out is float8_e4m3 [2, 3], expected float8_e4m3 [6]");
  expect_cast(bytes, x, {}, "fp8_cast_piece amax is missing");
  expect_cast(bytes, integers, amax, "got int32");
  expect_error([&] { fp8_transpose({matrix, floats}, stream()); }, "expected a float8 tensor");
  expect_error(
      [&] {
        fp8_transpose({matrix, matrix}, stream());
      },
      "fp8_transpose out is float8_e4m3 [2, 3], expected float8_e4m3 [3, 2]");
  expect_error([&] { fp8_transpose({other, matrix}, stream()); }, "expected float8_e4m3 [3, 2]");
  expect_error(
      [&] {
        fp8_scale_inv({floats, amax}, stream());
      },
      "fp8_scale_inv scale_inv is float32 [6], expected float32 [1]");
  expect_error([&] { fp8_scale_inv({amax, amax, DType::kBFloat16}, stream()); }, "bfloat16 is not a float8 format");
}

}  // namespace
}  // namespace octavo::fp8_shard_test
