#include "model/linear.h"

#include "kernels/matmul.h"
#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

class LinearTest : public OpTest {};
INSTANTIATE_COMPUTE_DTYPES(LinearTest);

constexpr int64_t kTokens = 11;
constexpr int64_t kIn = 7;
constexpr int64_t kOut = 13;

Values definition(const Values& x, const Values& w) {
  Values y(static_cast<size_t>(kTokens * kOut));
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t o = 0; o < kOut; ++o) {
      for (size_t i = 0; i < kIn; ++i) y[t * kOut + o] += x[t * kIn + i] * w[o * kIn + i];
    }
  }
  return y;
}

TEST_P(LinearTest, ForwardAndBackward) {
  reserve(linear_workspace_bytes(kTokens, kIn, kOut, dtype(), stream_));
  const Array x = random({kTokens, kIn});
  const Array w = random({kOut, kIn});
  const Array y(dtype(), {kTokens, kOut});
  linear_forward({.y = y, .x = x, .w = w}, stream_);
  expect_close(y, definition(x.values(), w.values()), tolerance(), "y");

  const Array d_y = random({kTokens, kOut});
  const Array d_x(dtype(), {kTokens, kIn});
  const Array d_w(DType::kFloat32, {kOut, kIn});
  LinearBackward args{.d_x = d_x, .d_w = d_w, .d_y = d_y, .x = x, .w = w};
  linear_backward(args, stream_);
  const auto of_x = [&](const Values& v) { return dot(d_y, definition(v, w.values())); };
  const auto of_w = [&](const Values& v) { return dot(d_y, definition(x.values(), v)); };
  expect_gradient(d_x, of_x, x, tolerance(), "d_x");
  expect_gradient(d_w, of_w, w, 3e-6, "d_w");

  const Values before = d_w.values();
  args.accumulate = true;
  linear_backward(args, stream_);
  expect_gradient(d_x, of_x, x, tolerance(), "d_x");
  expect_gradient(d_w, of_w, w, 3e-6, "d_w, accumulated", 1, before);
}

}  // namespace
}  // namespace octavo
