#include "kernels/math/sum_terms.h"

#include "tests/kernels/law.h"

namespace octavo::sum_terms_test {
namespace {

// The dtype is that of the terms.
class SumTermsTest : public LawTest {};
INSTANTIATE_DEVICES_AND_DTYPES(SumTermsTest);

// The sum is float32, in the order of the terms, and rounded once to the dtype of the output.
TEST_P(SumTermsTest, SumsInFloat32InOrder) {
  for (const int64_t n : kFlatLengths) {
    for (const auto& [out_offset, x_offset] : kFlatOffsets) {
      for (const int64_t count : {1, 2, 3, 8}) {
        const Array terms = on_device(random({count * n}, 3.0), x_offset);
        for (const auto& [to, accumulate] :
             {std::pair{DType::kFloat32, false}, {DType::kFloat32, true}, {dtype(), false}, {dtype(), true}}) {
          const Array out = on_device(random(to, {n}), out_offset);
          Array expected(to, {n});
          for (int64_t i = 0; i < n; ++i) {
            auto sum = static_cast<float>(terms.at(i));
            for (int64_t t = 1; t < count; ++t) sum += static_cast<float>(terms.at(t * n + i));
            if (accumulate) sum = static_cast<float>(out.at(i)) + sum;
            expected.set(i, static_cast<double>(sum));
          }
          sum_terms({out, terms, accumulate}, stream());
          EXPECT_TRUE(out.bits() == expected.bits())
              << count << " terms of " << n << " elements from " << x_offset << " to " << out_offset;
        }
      }
    }
  }
}

TEST_P(SumTermsTest, WrongShapesThrow) {
  const Array terms = random({3}), out = array(DType::kFloat32, {4}), three = array(DType::kFloat32, {3});
  const Array half = array(DType::kBFloat16, {3}), integers = array(DType::kInt32, {3});
  expect_error([&] { sum_terms({out, terms}, stream()); }, "expected a multiple of the elements of float32 [4]");
  expect_error([&] { sum_terms({half, three}, stream()); }, "out is bfloat16 [3], expected float32 [3]");
  expect_error([&] { sum_terms({three, integers}, stream()); }, "got int32");
}

}  // namespace
}  // namespace octavo::sum_terms_test
