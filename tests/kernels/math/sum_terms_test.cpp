#include "kernels/math/sum_terms.h"

#include "tests/kernels/op_fixture.h"

namespace octavo::sum_terms_test {
namespace {

// The parameter is the dtype of the terms.
class SumTermsTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(SumTermsTest);

TEST_P(SumTermsTest, SumsInFloat32InOrder) {
  for (const int64_t n : {0, 1, 7, 1009}) {
    for (const int64_t count : {1, 2, 5}) {
      const Array terms = random({count * n}, 3.0);
      for (const bool accumulate : {false, true}) {
        const Array out = random(DType::kFloat32, {n});
        Array expected = out;
        for (int64_t i = 0; i < n; ++i) {
          auto sum = static_cast<float>(terms.at(i));
          for (int64_t t = 1; t < count; ++t) sum += static_cast<float>(terms.at(t * n + i));
          if (accumulate) sum = static_cast<float>(out.at(i)) + sum;
          expected.set(i, static_cast<double>(sum));
        }
        sum_terms({.out = out, .terms = terms, .accumulate = accumulate}, stream_);
        EXPECT_EQ(out.bits(), expected.bits()) << count << " terms of " << n;
      }
    }
  }
}

// The sum is float32 and rounded once at the end.
TEST_P(SumTermsTest, SumsInTheDtypeOfTheTerms) {
  const Array terms = random({3 * 1009}, 3.0);
  const Array out = random({1009});
  Array expected = out;
  for (int64_t i = 0; i < 1009; ++i) {
    auto sum = static_cast<float>(terms.at(i));
    for (int64_t t = 1; t < 3; ++t) sum += static_cast<float>(terms.at(t * 1009 + i));
    expected.set(i, static_cast<double>(static_cast<float>(out.at(i)) + sum));
  }
  sum_terms({.out = out, .terms = terms, .accumulate = true}, stream_);
  EXPECT_EQ(out.bits(), expected.bits());
}

TEST_P(SumTermsTest, WrongShapesThrow) {
  const Array terms = random({3});
  const Array out = random(DType::kFloat32, {4});
  const Array three = random(DType::kFloat32, {3});
  const Array half = random(DType::kBFloat16, {3});
  const Array integers(DType::kInt32, {3});
  expect_error([&] { sum_terms({.out = out, .terms = terms}, stream_); },
               "expected a multiple of the elements of float32 [4]");
  const Array single = random(DType::kFloat32, {3});
  expect_error([&] { sum_terms({.out = half, .terms = single}, stream_); },
               "out is bfloat16 [3], expected float32 [3]");
  expect_error([&] { sum_terms({.out = three, .terms = integers}, stream_); }, "got int32");
}

}  // namespace
}  // namespace octavo::sum_terms_test
