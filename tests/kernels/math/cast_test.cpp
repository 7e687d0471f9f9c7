#include "kernels/math/cast.h"

#include "tests/kernels/op_fixture.h"

namespace octavo::cast_test {
namespace {

// The parameter is the dtype of the input.
class CastTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(CastTest);

TEST_P(CastTest, RoundsToTheOutput) {
  for (const DType out_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t n : {0, 1, 7, 1009}) {
      const Array x = random({n}, 100.0);
      const Array out(out_dtype, {n});
      Array expected(out_dtype, {n});
      for (int64_t i = 0; i < n; ++i) expected.set(i, x.at(i));
      cast({.out = out, .x = x}, stream_);
      EXPECT_EQ(out.bits(), expected.bits());
    }
  }
}

TEST_P(CastTest, WrongShapesThrow) {
  const Array x = random({3});
  const Array out(DType::kFloat32, {4});
  const Array integers(DType::kInt32, {3});
  expect_error([&] { cast({.out = out, .x = x}, stream_); }, "cast out is float32 [4], expected float32 [3]");
  expect_error([&] { cast({.out = integers, .x = x}, stream_); }, "got int32");
}

}  // namespace
}  // namespace octavo::cast_test
