#include "kernels/attention/qk_norm_rope.h"

#include "kernels/attention/rope.h"
#include "tests/kernels/law.h"

namespace octavo::qk_norm_rope_test {
namespace {

struct Size {
  int64_t sequences, seq_len, num_heads, num_kv_heads, head_dim;
  int64_t tokens() const { return sequences * seq_len; }
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
constexpr Size kSmall{2, 5, 3, 1, 32};

// The tensors of the op. Arrays that a test adds are on the same device.
struct Case {
  Size s;
  Array out, qkv, d_qkv, table, q_weight, k_weight, d_q_weight, d_k_weight;
  float eps = 1e-3f;

  template <typename At>
  QkNormRopeForward forward(const Array& result, At at) const {
    return {at(result), at(qkv), at(table), at(q_weight), at(k_weight), s.num_heads, s.num_kv_heads, eps};
  }
  template <typename At>
  QkNormRopeBackward backward(At at) const {
    return {.d_qkv = at(d_qkv),
            .d_q_weight = at(d_q_weight),
            .d_k_weight = at(d_k_weight),
            .qkv = at(qkv),
            .table = at(table),
            .q_weight = at(q_weight),
            .k_weight = at(k_weight),
            .num_heads = s.num_heads,
            .num_kv_heads = s.num_kv_heads,
            .eps = eps};
  }
};

class QkNormRopeTest : public LawTest {
 protected:
  // The sizes are odd, prime and realistic. Half a head of 80 or 96 is not a power of two of vectors.
  std::vector<Size> sizes() const {
    if (!on_gpu())
      return {{1, 1, 1, 1, 2},   {2, 5, 3, 1, 6},  {3, 7, 4, 2, 32}, {1, 41, 6, 2, 64},
              {2, 3, 2, 1, 128}, {3, 5, 4, 1, 80}, {1, 7, 3, 3, 96}, {1, 3, 2, 1, 256}};
    return {{1, 1, 1, 1, 32},      {3, 37, 5, 1, 64},   {2, 101, 6, 2, 32}, {2, 64, 16, 8, 64},  {3, 51, 32, 8, 128},
            {1, 2053, 3, 1, 128},  {1, 9, 3, 3, 128},   {1, 67, 7, 7, 32},  {2, 31, 13, 1, 64},  {5, 19, 17, 17, 64},
            {1, 4099, 40, 8, 128}, {7, 1, 64, 8, 128},  {1, 1, 1, 1, 80},   {3, 37, 5, 1, 80},   {2, 101, 32, 8, 80},
            {1, 2053, 9, 3, 80},   {1, 67, 7, 7, 96},   {3, 51, 12, 4, 96}, {1, 2053, 3, 1, 96}, {1, 1, 1, 1, 256},
            {3, 37, 5, 1, 256},    {2, 101, 12, 4, 256}};
  }
  Case make_case(const Size& s) {
    Array table(DType::kFloat32, {s.seq_len, s.head_dim});
    rope_table(table, 1e6, {});
    reserve(qk_norm_rope_backward_workspace_bytes(s.head_dim, stream()));
    return {.s = s,
            .out = array({s.tokens(), s.width()}),
            .qkv = random({s.tokens(), s.width()}, 2.0),
            .d_qkv = random({s.tokens(), s.width()}),
            .table = on_device(table),
            .q_weight = random({s.head_dim}, 0.3, 1.0),
            .k_weight = random({s.head_dim}, 0.3, 1.0),
            .d_q_weight = random(DType::kFloat32, {s.head_dim}),
            .d_k_weight = random(DType::kFloat32, {s.head_dim})};
  }
  static const Tensor& on_host(const Array& x) { return x.host(); }
  static const Tensor& in_place(const Array& x) { return x; }
};
INSTANTIATE_DEVICES_AND_DTYPES(QkNormRopeTest);

TEST_P(QkNormRopeTest, Forward) {
  for (const Size& s : sizes()) {
    const Case c = make_case(s);
    const Exact exact = exact_qk_norm_rope(c.forward(c.out, on_host));
    qk_norm_rope_forward(c.forward(c.out, in_place), stream());
    expect_exact(c.out, "qk_norm_rope_forward out", exact);
    qk_norm_rope_forward(c.forward(c.qkv, in_place), stream());
    EXPECT_TRUE(c.qkv.bits() == c.out.bits()) << "in place differs, " << c.qkv.host().describe();
  }
}

// The amax covers the whole row, value heads included, and measuring it changes no result.
TEST_P(QkNormRopeTest, Backward) {
  for (const Size& s : sizes()) {
    Case c = make_case(s);
    const Case measured = c;
    const ExactQkNormRopeBackward exact = exact_qk_norm_rope_backward(c.backward(on_host));
    qk_norm_rope_backward(c.backward(in_place), stream());
    expect_exact(c.d_qkv, "qk_norm_rope_backward d_qkv", exact.d_qkv);
    expect_exact(c.d_q_weight, "qk_norm_rope_backward d_q_weight", exact.d_q_weight);
    expect_exact(c.d_k_weight, "qk_norm_rope_backward d_k_weight", exact.d_k_weight);
    const Array amax = single(0);
    QkNormRopeBackward args = measured.backward(in_place);
    args.amax = amax;
    qk_norm_rope_backward(args, stream());
    EXPECT_EQ(amax.at(0), largest_magnitude(c.d_qkv, 0)) << c.qkv.host().describe();
    EXPECT_TRUE(measured.d_qkv.bits() == c.d_qkv.bits()) << c.qkv.host().describe();
    EXPECT_TRUE(measured.d_q_weight.bits() == c.d_q_weight.bits()) << c.qkv.host().describe();
    EXPECT_TRUE(measured.d_k_weight.bits() == c.d_k_weight.bits()) << c.qkv.host().describe();
  }
}

TEST(QkNormRopeFormula, Gradient) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  const auto random = [&](const std::vector<int64_t>& shape, double mean) {
    Array x(DType::kFloat32, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, mean + normal(generator));
    return x;
  };
  Case c{.s = {2, 5, 3, 2, 6},
         .out = Array(DType::kFloat32, {10, 42}),
         .qkv = random({10, 42}, 0),
         .d_qkv = random({10, 42}, 0),
         .table = Array(DType::kFloat32, {5, 6}),
         .q_weight = random({6}, 1),
         .k_weight = random({6}, 1),
         .d_q_weight = random({6}, 0),
         .d_k_weight = random({6}, 0)};
  rope_table(c.table, 1e4, {});
  const auto at = [](const Array& x) { return x.host(); };
  const auto loss = [&] { return dot(c.d_qkv, exact_qk_norm_rope(c.forward(c.out, at)).values); };
  const ExactQkNormRopeBackward exact = exact_qk_norm_rope_backward(c.backward(at));
  expect_gradient(exact.d_qkv, c.qkv, loss, "d_qkv", 3);
  expect_gradient(exact.d_q_weight, c.q_weight, loss, "d_q_weight", 1, c.d_q_weight.values());
  expect_gradient(exact.d_k_weight, c.k_weight, loss, "d_k_weight", 1, c.d_k_weight.values());
}

// The largest or broken element is in a query head, or in the last value head.
TEST_P(QkNormRopeTest, Amax) {
  for (const bool last : {false, true}) {
    for (const double value : {50.0, std::nan("")}) {
      for (const double before : {0.0, 1000.0}) {
        Case c = make_case(kSmall);
        c.d_qkv.set(last ? c.d_qkv.size() - 1 : 1, value);
        const Array amax = single(before);
        QkNormRopeBackward args = c.backward(in_place);
        args.amax = amax;
        qk_norm_rope_backward(args, stream());
        EXPECT_TRUE(std::isnan(value) ? std::isnan(amax.at(0)) : amax.at(0) == largest_magnitude(c.d_qkv, before))
            << amax.at(0);
      }
    }
  }
}

TEST_P(QkNormRopeTest, IsReproducible) {
  const Case first = make_case({1, 41, 6, 2, 64});
  for (const int of : {0, 1, 2, 3}) {
    expect_reproducible([&] {
      const Case c = first;
      qk_norm_rope_forward(c.forward(c.out, in_place), stream());
      qk_norm_rope_backward(c.backward(in_place), stream());
      return of == 0 ? c.out : of == 1 ? c.d_qkv : of == 2 ? c.d_q_weight : c.d_k_weight;
    });
  }
}

TEST_P(QkNormRopeTest, WrongShapesThrow) {
  Case c = make_case(kSmall);
  c.d_q_weight = random(DType::kFloat32, {kSmall.head_dim + 1});
  expect_error([&] { qk_norm_rope_backward(c.backward(in_place), stream()); }, "qk_norm_rope d_q_weight");
  c.k_weight = random({kSmall.head_dim - 1});
  expect_error([&] { qk_norm_rope_forward(c.forward(c.out, in_place), stream()); }, "qk_norm_rope k_weight");
  c.qkv = random({kSmall.tokens(), kSmall.width() + 1});
  expect_error([&] { qk_norm_rope_forward(c.forward(c.out, in_place), stream()); }, "qk_norm_rope qkv");
}

}  // namespace
}  // namespace octavo::qk_norm_rope_test
