#include "kernels/fp8/fp8_shard.h"

#include <limits>

#include "kernels/fp8/fp8.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::fp8_shard_test {
namespace {

constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr float kAmaxes[] = {0.0f,
                             1e-20f,
                             1e-12f,
                             0.01f,
                             3.0f,
                             448.0f,
                             3e38f,
                             std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};

Array single(float value) {
  Array array(DType::kFloat32, {1});
  array.set(0, static_cast<double>(value));
  return array;
}

// Returns elements [begin, end) of a flat tensor.
Tensor piece(const Array& whole, int64_t begin, int64_t end) {
  const Tensor& tensor = whole;
  auto* first = static_cast<char*>(tensor.raw()) + begin * dtype_bytes(tensor.dtype());
  return {first, tensor.dtype(), {end - begin}};
}

// The parameter is the dtype of the tensor that is cast.
class Fp8ShardTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(Fp8ShardTest);

// Casting shards with arbitrary boundaries gives the bits of quantizing the whole weight.
TEST_P(Fp8ShardTest, SlicesGiveTheBitsOfQuantize) {
  struct Size {
    int64_t m, n;
  };
  for (const auto& [m, n] : {Size{1, 1}, {1, 67}, {67, 1}, {13, 31}, {64, 48}, {130, 259}}) {
    const Array x = random({m, n});
    for (const DType format : kFormats) {
      for (const float amax : kAmaxes) {
        const Array amax_of_x = single(amax);
        const Array rows(format, {m, n});
        const Array columns(format, {n, m});
        const Array scale_inv(DType::kFloat32, {1});
        quantize({.cast = {.rows = {rows, scale_inv, Scaling::kTensor},
                           .columns = {columns, scale_inv, Scaling::kTensor},
                           .amax = amax_of_x},
                  .x = x},
                 stream_);
        const Array cast(format, {m, n});
        for (int64_t begin = 0; begin < m * n;) {
          const int64_t end = std::min(m * n, begin + 1 + begin * 2);
          fp8_cast_piece({.out = piece(cast, begin, end), .x = piece(x, begin, end), .amax = amax_of_x}, stream_);
          begin = end;
        }
        EXPECT_EQ(cast.bits(), rows.bits()) << m << " x " << n << ", amax " << amax;
        const Array transposed(format, {n, m});
        fp8_transpose({.out = transposed, .x = cast}, stream_);
        EXPECT_EQ(transposed.bits(), columns.bits()) << m << " x " << n;
        const Array inverse(DType::kFloat32, {1});
        fp8_scale_inv({.scale_inv = inverse, .amax = amax_of_x, .format = format}, stream_);
        EXPECT_EQ(inverse.bits(), scale_inv.bits()) << "amax " << amax;
      }
    }
  }
}

TEST_P(Fp8ShardTest, CastLeavesNeighboursAlone) {
  const Array x = random({9});
  const Array out(DType::kFloat8E4M3, {9});
  fp8_cast_piece({.out = piece(out, 2, 7), .x = piece(x, 2, 7), .amax = single(4.0f)}, stream_);
  fp8_cast_piece({.out = piece(out, 3, 3), .x = piece(x, 3, 3), .amax = single(1.0f)}, stream_);
  for (const size_t i : {0, 1, 7, 8}) EXPECT_EQ(out.bits()[i], 0xff) << i;
  for (const size_t i : {2, 3, 4, 5, 6}) EXPECT_NE(out.bits()[i], 0xff) << i;
}

TEST_P(Fp8ShardTest, ManyScales) {
  const auto n = static_cast<int64_t>(std::size(kAmaxes));
  for (const DType format : kFormats) {
    Array amax(DType::kFloat32, {n});
    for (int64_t i = 0; i < n; ++i) amax.set(i, static_cast<double>(kAmaxes[i]));
    const Array scale_inv(DType::kFloat32, {n});
    fp8_scale_inv({.scale_inv = scale_inv, .amax = amax, .format = format}, stream_);
    const float largest = format == DType::kFloat8E4M3 ? 448.0f : 57344.0f;
    for (int64_t i = 0; i < n; ++i) {
      if (std::isnan(kAmaxes[i])) {
        EXPECT_TRUE(std::isnan(scale_inv.at(i)));
      } else {
        const float expected = 1.0f / (largest / std::max(kAmaxes[i], 1e-12f));
        EXPECT_EQ(scale_inv.at(i), static_cast<double>(expected)) << kAmaxes[i];
      }
    }
    fp8_scale_inv({.scale_inv = amax, .amax = amax, .format = format}, stream_);
    EXPECT_EQ(amax.bits(), scale_inv.bits()) << "in place";
  }
}

TEST_P(Fp8ShardTest, DoesNotDependOnThreads) {
  const Array x = random({301 * 67});
  expect_thread_independent([&] {
    const Array rows(DType::kFloat8E4M3, {301, 67});
    const Array columns(DType::kFloat8E4M3, {67, 301});
    fp8_cast_piece({.out = piece(rows, 0, rows.size()), .x = x, .amax = single(3.0f)}, stream_);
    fp8_transpose({.out = columns, .x = rows}, stream_);
    return columns;
  });
}

TEST_P(Fp8ShardTest, WrongArgumentsThrow) {
  const Array x = random({6});
  const Array matrix(DType::kFloat8E4M3, {2, 3});
  const Array other_format(DType::kFloat8E5M2, {3, 2});
  const Array floats(DType::kFloat32, {6});
  const Array amax = single(1.0f);
  expect_error([&] { fp8_cast_piece({.out = floats, .x = x, .amax = amax}, stream_); }, "expected a float8 tensor");
  expect_error([&] { fp8_cast_piece({.out = matrix, .x = x, .amax = amax}, stream_); },
               "fp8_cast_piece out is float8_e4m3 [2, 3], expected float8_e4m3 [6]");
  const Array bytes(DType::kFloat8E4M3, {6});
  expect_error([&] { fp8_cast_piece({.out = bytes, .x = x, .amax = {}}, stream_); }, "fp8_cast_piece amax is missing");
  const Array integers(DType::kInt32, {6});
  expect_error([&] { fp8_cast_piece({.out = bytes, .x = integers, .amax = amax}, stream_); }, "got int32");
  expect_error([&] { fp8_transpose({.out = matrix, .x = floats}, stream_); }, "expected a float8 tensor");
  expect_error([&] { fp8_transpose({.out = matrix, .x = matrix}, stream_); },
               "fp8_transpose out is float8_e4m3 [2, 3], expected float8_e4m3 [3, 2]");
  expect_error([&] { fp8_transpose({.out = other_format, .x = matrix}, stream_); }, "expected float8_e4m3 [3, 2]");
  expect_error([&] { fp8_scale_inv({.scale_inv = floats, .amax = amax}, stream_); },
               "fp8_scale_inv scale_inv is float32 [6], expected float32 [1]");
  expect_error([&] { fp8_scale_inv({.scale_inv = amax, .amax = amax, .format = DType::kBFloat16}, stream_); },
               "bfloat16 is not a float8 format");
}

}  // namespace
}  // namespace octavo::fp8_shard_test
