#include "kernels/math/cast.h"

#include "tests/kernels/law.h"

namespace octavo::cast_test {
namespace {

// The dtype is that of the input.
class CastTest : public LawTest {};
INSTANTIATE_DEVICES_AND_DTYPES(CastTest);

TEST_P(CastTest, RoundsToTheOutput) {
  for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t n : kFlatLengths) {
      for (const auto& [out_offset, x_offset] : kFlatOffsets) {
        const Array x = on_device(random({n}, 100.0), x_offset), out = array(to, {n}, out_offset);
        Array expected(to, {n});
        for (int64_t i = 0; i < n; ++i) expected.set(i, x.at(i));
        cast({out, x}, stream());
        EXPECT_TRUE(out.bits() == expected.bits()) << n << " elements from " << x_offset << " to " << out_offset;
      }
    }
  }
}

TEST_P(CastTest, WrongShapesThrow) {
  const Array x = random({3}), out = array(DType::kFloat32, {4}), integers = array(DType::kInt32, {3});
  expect_error([&] { cast({out, x}, stream()); }, "cast out is float32 [4], expected float32 [3]");
  expect_error([&] { cast({integers, x}, stream()); }, "got int32");
}

}  // namespace
}  // namespace octavo::cast_test
