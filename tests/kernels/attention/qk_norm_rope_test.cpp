#include "kernels/attention/qk_norm_rope.h"

#include "kernels/attention/rope.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::qk_norm_rope_test {
namespace {

constexpr float kEps = 1e-3f;

struct Size {
  int64_t batch, seq_len, num_heads, num_kv_heads, head_dim;
  int64_t tokens() const { return batch * seq_len; }
  int64_t heads() const { return num_heads + 2 * num_kv_heads; }
  int64_t width() const { return heads() * head_dim; }
};
constexpr Size kSizes[] = {{1, 1, 1, 1, 2}, {2, 5, 3, 1, 6}, {3, 7, 4, 2, 32}, {1, 41, 6, 2, 64}, {2, 3, 2, 1, 128}};

// Inputs of the op, except the gradients.
struct Inputs {
  Array qkv, table, q_weight, k_weight;
};

// Computes the formula of the header in float64.
Values definition(const Inputs& in, const Size& s, const Values& qkv, const Values& q_weight, const Values& k_weight) {
  Values out(qkv);
  const int64_t n = s.head_dim;
  for (int64_t at = 0; at < s.tokens() * s.width(); at += n) {
    const int64_t head = at / n % s.heads();
    if (head >= s.num_heads + s.num_kv_heads) continue;
    const Values& weight = head < s.num_heads ? q_weight : k_weight;
    const auto x = [&](int64_t i) { return qkv[static_cast<size_t>(at + i)]; };
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x(i) * x(i);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(kEps));
    const int64_t row = at / s.width() % s.seq_len * n;
    for (int64_t i = 0; i < n / 2; ++i) {
      const double low = x(i) * rstd * weight[static_cast<size_t>(i)];
      const double high = x(i + n / 2) * rstd * weight[static_cast<size_t>(i + n / 2)];
      const double cos = in.table.at(row + i);
      const double sin = in.table.at(row + n / 2 + i);
      out[static_cast<size_t>(at + i)] = low * cos - high * sin;
      out[static_cast<size_t>(at + i + n / 2)] = high * cos + low * sin;
    }
  }
  return out;
}

class Case {
 public:
  Case(Inputs inputs, const Size& size) : in(std::move(inputs)), s(size) {}

  void forward(const Tensor& out, const Tensor& qkv, Stream& stream) const {
    qk_norm_rope_forward({.out = out,
                          .qkv = qkv,
                          .table = in.table,
                          .q_weight = in.q_weight,
                          .k_weight = in.k_weight,
                          .num_heads = s.num_heads,
                          .num_kv_heads = s.num_kv_heads,
                          .eps = kEps},
                         stream);
  }
  QkNormRopeBackward backward(const Array& d_qkv, const Array& d_q_weight, const Array& d_k_weight) const {
    return {.d_qkv = d_qkv,
            .d_q_weight = d_q_weight,
            .d_k_weight = d_k_weight,
            .qkv = in.qkv,
            .table = in.table,
            .q_weight = in.q_weight,
            .k_weight = in.k_weight,
            .num_heads = s.num_heads,
            .num_kv_heads = s.num_kv_heads,
            .eps = kEps};
  }

  Inputs in;
  Size s;
};

class QkNormRopeTest : public OpTest {
 protected:
  Case make_case(const Size& s) {
    const Array table(DType::kFloat32, {s.seq_len, s.head_dim});
    rope_table(table, 10000.0, {});
    return {{.qkv = random({s.tokens(), s.width()}, 2.0),
             .table = table,
             .q_weight = random({s.head_dim}, 0.3, 1.0),
             .k_weight = random({s.head_dim}, 0.3, 1.0)},
            s};
  }
};
INSTANTIATE_COMPUTE_DTYPES(QkNormRopeTest);

TEST_P(QkNormRopeTest, Forward) {
  for (const Size& s : kSizes) {
    const Case c = make_case(s);
    const Array out(dtype(), {s.tokens(), s.width()});
    c.forward(out, c.in.qkv, stream_);
    expect_close(out, definition(c.in, s, c.in.qkv.values(), c.in.q_weight.values(), c.in.k_weight.values()),
                 tolerance());
    const Array in_place = c.in.qkv;
    c.forward(in_place, in_place, stream_);
    EXPECT_EQ(in_place.bits(), out.bits());
    // The value heads are unchanged.
    for (int64_t i = 0; i < out.size(); ++i) {
      if (i % s.width() >= (s.num_heads + s.num_kv_heads) * s.head_dim) {
        ASSERT_EQ(out.at(i), c.in.qkv.at(i));
      }
    }
  }
}

TEST_P(QkNormRopeTest, Backward) {
  for (const Size& s : kSizes) {
    const Case c = make_case(s);
    reserve(qk_norm_rope_backward_workspace_bytes(s.head_dim, stream_));
    const Array d_out = random({s.tokens(), s.width()});
    const Array d_qkv = d_out;
    const Array d_q_weight = random(DType::kFloat32, {s.head_dim});
    const Array d_k_weight = random(DType::kFloat32, {s.head_dim});
    const Values before_q = d_q_weight.values();
    const Values before_k = d_k_weight.values();
    qk_norm_rope_backward(c.backward(d_qkv, d_q_weight, d_k_weight), stream_);
    const Values qkv = c.in.qkv.values(), q = c.in.q_weight.values(), k = c.in.k_weight.values();
    const auto f = [&](const Values& of_qkv, const Values& of_q, const Values& of_k) {
      return dot(d_out, definition(c.in, s, of_qkv, of_q, of_k));
    };
    // In heads of two elements the gradient is the difference of nearly equal terms, so its relative error is larger.
    const double loss = s.head_dim == 2 ? 4 : 1;
    expect_gradient(
        d_qkv, [&](const Values& v) { return f(v, q, k); }, c.in.qkv, loss * tolerance() + 1e-6, "d_qkv",
        d_qkv.size() / 100 + 1);
    expect_gradient(
        d_q_weight, [&](const Values& v) { return f(qkv, v, k); }, c.in.q_weight, 1e-5, "d_q_weight",
        s.head_dim / 50 + 1, before_q);
    expect_gradient(
        d_k_weight, [&](const Values& v) { return f(qkv, q, v); }, c.in.k_weight, 1e-5, "d_k_weight",
        s.head_dim / 50 + 1, before_k);
  }
}

// The amax covers the whole row, value heads included.
TEST_P(QkNormRopeTest, Amax) {
  const Case c = make_case(kSizes[1]);
  reserve(qk_norm_rope_backward_workspace_bytes(c.s.head_dim, stream_));
  for (const int64_t largest : {int64_t{1}, c.s.width() - 1}) {
    for (const double before : {0.0, 1000.0}) {
      Array d_qkv = random({c.s.tokens(), c.s.width()});
      d_qkv.set(largest, 50.0);
      Array amax(DType::kFloat32, {1});
      amax.fill(before);
      const Array d_q_weight = random(DType::kFloat32, {c.s.head_dim});
      const Array d_k_weight = random(DType::kFloat32, {c.s.head_dim});
      QkNormRopeBackward args = c.backward(d_qkv, d_q_weight, d_k_weight);
      args.amax = amax;
      qk_norm_rope_backward(args, stream_);
      EXPECT_EQ(amax.at(0), largest_magnitude(d_qkv, before));
    }
  }
}

TEST_P(QkNormRopeTest, DoesNotDependOnThreads) {
  const Case c = make_case(kSizes[3]);
  const Array d_out = random({c.s.tokens(), c.s.width()});
  expect_thread_independent([&] {
    const Array out(dtype(), {c.s.tokens(), c.s.width()});
    c.forward(out, c.in.qkv, stream_);
    return out;
  });
  for (const int of : {0, 1, 2}) {
    expect_thread_independent([&] {
      reserve(qk_norm_rope_backward_workspace_bytes(c.s.head_dim, stream_));
      const Array d_qkv = d_out;
      Array d_q_weight(DType::kFloat32, {c.s.head_dim});
      Array d_k_weight(DType::kFloat32, {c.s.head_dim});
      d_q_weight.fill(0.5);
      d_k_weight.fill(0.25);
      qk_norm_rope_backward(c.backward(d_qkv, d_q_weight, d_k_weight), stream_);
      return of == 0 ? d_qkv : of == 1 ? d_q_weight : d_k_weight;
    });
  }
}

TEST_P(QkNormRopeTest, WrongShapesThrow) {
  const Size s = kSizes[1];
  Case c = make_case(s);
  const Array out(dtype(), {s.tokens(), s.width()});
  c.in.k_weight = random({s.head_dim - 1});
  expect_error([&] { c.forward(out, c.in.qkv, stream_); }, "qk_norm_rope k_weight");
  c.in.k_weight = c.in.q_weight;
  expect_error([&] { c.forward(out, random({s.tokens(), s.width() + 1}), stream_); }, "qk_norm_rope qkv");
  const Array d_weight = random(DType::kFloat32, {s.head_dim + 1});
  expect_error([&] { qk_norm_rope_backward(c.backward(out, d_weight, d_weight), stream_); }, "qk_norm_rope d_q_weight");
}

}  // namespace
}  // namespace octavo::qk_norm_rope_test
