#include "kernels/add.h"

#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

// The parameter is the dtype of what is added.
class AddTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(AddTest);

TEST_P(AddTest, AddsInFloat32) {
  for (const int64_t n : {0, 1, 7, 1009}) {
    const Array x = random({n}, 3.0);
    const Array out = random(DType::kFloat32, {n});
    Array expected = out;
    for (int64_t i = 0; i < n; ++i) expected.set(i, out.at(i) + x.at(i));
    add({.out = out, .x = x}, stream_);
    EXPECT_EQ(out.bits(), expected.bits()) << n;
  }
}

TEST_P(AddTest, WrongShapesThrow) {
  const Array x = random({3});
  const Array out = random(DType::kFloat32, {4});
  const Array half = random(DType::kBFloat16, {3});
  const Array integers(DType::kInt32, {4});
  expect_error([&] { add({.out = out, .x = x}, stream_); }, "add out is float32 [4], expected float32 [3]");
  expect_error([&] { add({.out = half, .x = x}, stream_); }, "add out is bfloat16 [3], expected float32 [3]");
  expect_error([&] { add({.out = out, .x = integers}, stream_); }, "got int32");
}

}  // namespace
}  // namespace octavo
