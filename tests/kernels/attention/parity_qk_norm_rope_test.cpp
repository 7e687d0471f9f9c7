#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_qk_norm_rope_test {
namespace {

class QkNormRopeParity : public ComputeDtypeParity {};
INSTANTIATE_TEST_SUITE_P(Ops, QkNormRopeParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

struct Size {
  int64_t sequences, seq_len, num_heads, num_kv_heads, head_dim;
  int64_t tokens() const { return sequences * seq_len; }
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
constexpr Size kSizes[] = {{1, 1, 1, 1, 32},    {3, 37, 5, 1, 64},    {2, 101, 6, 2, 32},    {2, 64, 16, 8, 64},
                           {3, 51, 32, 8, 128}, {1, 2053, 3, 1, 128}, {1, 9, 3, 3, 128},     {1, 67, 7, 7, 32},
                           {2, 31, 13, 1, 64},  {5, 19, 17, 17, 64},  {1, 4099, 40, 8, 128}, {7, 1, 64, 8, 128}};

struct Twins {
  Twins(DType dtype, const Size& s)
      : out(dtype, {s.tokens(), s.width()}),
        qkv(dtype, {s.tokens(), s.width()}),
        d_qkv(dtype, {s.tokens(), s.width()}),
        table(DType::kFloat32, {s.seq_len, s.head_dim}),
        q_weight(dtype, {s.head_dim}),
        k_weight(dtype, {s.head_dim}),
        d_q_weight(DType::kFloat32, {s.head_dim}),
        d_k_weight(DType::kFloat32, {s.head_dim}) {}

  QkNormRopeForward forward(const Size& s, const Twin& result, const Stream& stream) const {
    return {.out = result.on(stream),
            .qkv = qkv.on(stream),
            .table = table.on(stream),
            .q_weight = q_weight.on(stream),
            .k_weight = k_weight.on(stream),
            .num_heads = s.num_heads,
            .num_kv_heads = s.num_kv_heads};
  }
  QkNormRopeBackward backward(const Size& s, const Stream& stream) const {
    return {.d_qkv = d_qkv.on(stream),
            .d_q_weight = d_q_weight.on(stream),
            .d_k_weight = d_k_weight.on(stream),
            .qkv = qkv.on(stream),
            .table = table.on(stream),
            .q_weight = q_weight.on(stream),
            .k_weight = k_weight.on(stream),
            .num_heads = s.num_heads,
            .num_kv_heads = s.num_kv_heads};
  }

  Twin out, qkv, d_qkv, table, q_weight, k_weight, d_q_weight, d_k_weight;
};

TEST_P(QkNormRopeParity, Forward) {
  for (const Size& s : kSizes) {
    Twins twins(dtype(), s);
    rope_table(twins.table.cpu(), 1e6, {});
    upload(twins.table);
    fill(twins.qkv, 2.0f);
    fill(twins.q_weight, 0.2f, 1.0f);
    fill(twins.k_weight, 0.2f, 1.0f);
    poison(twins.out);
    const Exact exact = exact_qk_norm_rope(twins.forward(s, twins.out, cpu()));
    on_both([&](Stream& stream) { qk_norm_rope_forward(twins.forward(s, twins.out, stream), stream); });
    expect_close(twins.out, "out", tolerance());
    expect_exact(twins.out, "qk_norm_rope_forward out", exact);
    qk_norm_rope_forward(twins.forward(s, twins.qkv, gpu()), gpu());
    EXPECT_EQ(gpu_bytes(twins.qkv), gpu_bytes(twins.out)) << "in place differs, " << twins.qkv.cpu().describe();
  }
}

TEST_P(QkNormRopeParity, Backward) {
  for (const Size& s : kSizes) {
    reserve(qk_norm_rope_backward_workspace_bytes(s.head_dim, cpu()),
            qk_norm_rope_backward_workspace_bytes(s.head_dim, gpu()));
    Twins twins(dtype(), s);
    rope_table(twins.table.cpu(), 1e6, {});
    upload(twins.table);
    fill(twins.qkv, 2.0f);
    fill(twins.q_weight, 0.2f, 1.0f);
    fill(twins.k_weight, 0.2f, 1.0f);
    fill(twins.d_q_weight);
    fill(twins.d_k_weight);
    fill(twins.d_qkv);
    // Runs with the same inputs with and without an amax.
    Twin amax(DType::kFloat32, {1});
    std::vector<std::vector<char>> results;
    for (const bool measures : {true, false}) {
      upload(twins.d_qkv);
      gpu().zero(twins.d_q_weight.gpu());
      gpu().zero(twins.d_k_weight.gpu());
      gpu().zero(amax.gpu());
      QkNormRopeBackward args = twins.backward(s, gpu());
      if (measures) args.amax = amax.gpu();
      qk_norm_rope_backward(args, gpu());
      if (measures) {
        const std::vector<float> values = gpu_values(twins.d_qkv);
        float largest = 0;
        for (const float value : values) largest = std::max(largest, std::abs(value));
        EXPECT_EQ(gpu_values(amax)[0], largest) << twins.qkv.cpu().describe();
      }
      for (const Twin* twin : {&twins.d_qkv, &twins.d_q_weight, &twins.d_k_weight}) results.push_back(gpu_bytes(*twin));
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i], results[i + 3]) << i << ", " << twins.qkv.cpu().describe();

    for (const Twin* twin : {&twins.d_qkv, &twins.d_q_weight, &twins.d_k_weight}) upload(*twin);
    const ExactQkNormRopeBackward exact = exact_qk_norm_rope_backward(twins.backward(s, cpu()));
    on_both([&](Stream& stream) { qk_norm_rope_backward(twins.backward(s, stream), stream); });
    expect_close(twins.d_qkv, "d_qkv", tolerance());
    expect_close(twins.d_q_weight, "d_q_weight", 3e-5);
    expect_close(twins.d_k_weight, "d_k_weight", 3e-5);
    expect_exact(twins.d_qkv, "qk_norm_rope_backward d_qkv", exact.d_qkv);
    expect_exact(twins.d_q_weight, "qk_norm_rope_backward d_q_weight", exact.d_q_weight);
    expect_exact(twins.d_k_weight, "qk_norm_rope_backward d_k_weight", exact.d_k_weight);
  }
}

TEST_P(QkNormRopeParity, AmaxOfWhatIsNotFinite) {
  const Size s{1, 5, 3, 2, 64};
  reserve(0, qk_norm_rope_backward_workspace_bytes(s.head_dim, gpu()));
  Twins twins(dtype(), s);
  rope_table(twins.table.cpu(), 1e6, {});
  upload(twins.table);
  fill(twins.qkv);
  fill(twins.q_weight, 0.2f, 1.0f);
  fill(twins.k_weight, 0.2f, 1.0f);
  // The places are in a query head and in a value head.
  for (const int64_t place : {int64_t{0}, s.tokens() * s.width() - 1}) {
    fill(twins.d_qkv);
    twins.d_qkv.set(place, std::numeric_limits<float>::quiet_NaN());
    upload(twins.d_qkv);
    const Twin amax(DType::kFloat32, {1});
    gpu().zero(amax.gpu());
    QkNormRopeBackward args = twins.backward(s, gpu());
    args.amax = amax.gpu();
    qk_norm_rope_backward(args, gpu());
    EXPECT_TRUE(std::isnan(gpu_values(amax)[0])) << place;
  }
}

}  // namespace
}  // namespace octavo::parity_qk_norm_rope_test
