// Octavo's own kernels on the GPU against the same ops on the CPU: random inputs, float32 and bfloat16, odd, prime and
// realistic sizes, aliases that the contracts allow, and equal bits twice where an op promises determinism.
#include "tests/kernels/parity.h"

#include <chrono>
#include <functional>
#include <thread>

#include "kernels/adamw.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/reduce.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace octavo {
namespace {

INSTANTIATE_TEST_SUITE_P(Ops, ComputeDtypeParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// ---- Embedding

struct EmbeddingSize {
  int64_t tokens, vocab, hidden;
};

TEST_P(ComputeDtypeParity, EmbeddingForward) {
  for (const auto& [tokens, vocab, hidden] :
       {EmbeddingSize{1, 3, 8}, {37, 272, 64}, {131, 1009, 127}, {513, 4001, 2048}, {5, 11, 16384}}) {
    Twin out(dtype(), {tokens, hidden});
    Twin ids(DType::kInt32, {tokens});
    Twin table(dtype(), {vocab, hidden});
    fill_integers(ids, 0, static_cast<int32_t>(vocab));
    fill(table);
    poison(out);
    on_both([&](Stream& s) { embedding_forward({out.on(s), ids.on(s), table.on(s)}, s); });
    EXPECT_EQ(relative_error(out), 0.0) << out.cpu().describe();
  }
}

// The positions sorted by id, equal ids in rising order.
void sort_positions(Twin& order, const Twin& ids) {
  auto* positions = order.cpu().data<int32_t>();
  std::iota(positions, positions + order.cpu().numel(), 0);
  const auto* id = ids.cpu().data<int32_t>();
  std::stable_sort(positions, positions + order.cpu().numel(), [&](int32_t a, int32_t b) { return id[a] < id[b]; });
}

TEST_P(ComputeDtypeParity, EmbeddingBackward) {
  // ids in [0, used): one id for all tokens, runs around the length where they are split, and many short runs.
  struct Case {
    EmbeddingSize size;
    int32_t used;
  };
  for (const auto& [size, used] : {Case{{1, 3, 8}, 3},
                                   {{4099, 272, 64}, 1},
                                   {{1000, 272, 256}, 59},
                                   {{777, 1009, 127}, 5},
                                   {{1500, 1009, 2048}, 83},
                                   {{2048, 5003, 1000}, 5003}}) {
    Twin d_table(DType::kFloat32, {size.vocab, size.hidden});
    Twin d_out(dtype(), {size.tokens, size.hidden});
    Twin ids(DType::kInt32, {size.tokens});
    Twin order(DType::kInt32, {size.tokens});
    fill(d_table);
    fill(d_out);
    fill_integers(ids, 0, used);
    sort_positions(order, ids);
    upload(order);
    const auto backward = [&](Stream& s) {
      embedding_backward({d_table.on(s), d_out.on(s), ids.on(s), order.on(s)}, s);
    };
    on_both(backward);
    expect_close(d_table, "d_table", 1e-5);

    const std::vector<char> once = [&] {
      gpu().zero(d_table.gpu());
      backward(gpu());
      return gpu_bytes(d_table);
    }();
    gpu().zero(d_table.gpu());
    backward(gpu());
    EXPECT_EQ(gpu_bytes(d_table), once) << "not deterministic, " << size.tokens << " tokens of " << used << " ids";
  }
}

// ---- RMSNorm

struct RowSize {
  int64_t tokens, hidden;
};
const RowSize kNormSizes[] = {{1, 1},       {3, 7},      {1301, 64},  {257, 127},   {67, 1000},
                              {1111, 2048}, {601, 4096}, {300, 8192}, {141, 16384}, {3, 16392}};

TEST_P(ComputeDtypeParity, RmsNormForward) {
  for (const auto& [tokens, hidden] : kNormSizes) {
    Twin out(dtype(), {tokens, hidden});
    Twin rstd(DType::kFloat32, {tokens});
    Twin x(dtype(), {tokens, hidden});
    Twin residual(dtype(), {tokens, hidden});
    Twin weight(dtype(), {hidden});
    fill(x);
    fill(residual, 3.0f);
    fill(weight, 0.2f, 1.0f);
    poison(out);
    poison(rstd);
    on_both([&](Stream& s) {
      rms_norm_forward({.out = out.on(s),
                        .rstd = rstd.on(s),
                        .residual_out = {},
                        .x = x.on(s),
                        .residual = {},
                        .weight = weight.on(s)},
                       s);
    });
    expect_close(out, "out", tolerance());
    expect_close(rstd, "rstd", 1e-5);

    poison(out);
    poison(rstd);
    on_both([&](Stream& s) {  // in place: h replaces x
      rms_norm_forward({.out = out.on(s),
                        .rstd = rstd.on(s),
                        .residual_out = x.on(s),
                        .x = x.on(s),
                        .residual = residual.on(s),
                        .weight = weight.on(s)},
                       s);
    });
    EXPECT_EQ(relative_error(x), 0.0) << "residual_out, " << x.cpu().describe();
    expect_close(out, "out with residual", tolerance());
    expect_close(rstd, "rstd with residual", 1e-5);
  }
}

TEST_P(ComputeDtypeParity, RmsNormBackward) {
  for (const auto& [tokens, hidden] : kNormSizes) {
    reserve(0, rms_norm_backward_workspace_bytes(hidden, gpu()));
    Twin d_h(dtype(), {tokens, hidden});
    Twin d_weight(DType::kFloat32, {hidden});
    Twin d_out(dtype(), {tokens, hidden});
    Twin d_residual(dtype(), {tokens, hidden});
    Twin h(dtype(), {tokens, hidden});
    Twin rstd(DType::kFloat32, {tokens});
    Twin weight(dtype(), {hidden});
    fill(d_weight);
    fill(d_out);
    fill(d_residual);
    fill(h);
    fill(rstd, 0.1f, 1.0f);
    fill(weight, 0.2f, 1.0f);
    poison(d_h);
    const auto backward = [&](Stream& s, const Twin& result, bool with_residual) {
      rms_norm_backward({.d_h = result.on(s),
                         .d_weight = d_weight.on(s),
                         .d_out = d_out.on(s),
                         .d_residual = with_residual ? d_residual.on(s) : Tensor(),
                         .h = h.on(s),
                         .rstd = rstd.on(s),
                         .weight = weight.on(s)},
                        s);
    };
    on_both([&](Stream& s) { backward(s, d_h, false); });
    expect_close(d_h, "d_h", tolerance());
    expect_close(d_weight, "d_weight", 1e-5);

    gpu().zero(d_weight.gpu());
    backward(gpu(), d_h, true);
    const auto once = std::pair(gpu_bytes(d_h), gpu_bytes(d_weight));
    gpu().zero(d_weight.gpu());
    backward(gpu(), d_h, true);
    EXPECT_EQ(std::pair(gpu_bytes(d_h), gpu_bytes(d_weight)), once) << "not deterministic, " << h.cpu().describe();

    gpu().copy(d_weight.gpu(), d_weight.cpu());
    on_both([&](Stream& s) { backward(s, d_residual, true); });  // in place
    expect_close(d_residual, "d_h over d_residual", tolerance());
    expect_close(d_weight, "d_weight with residual", 1e-5);
    EXPECT_EQ(gpu_bytes(d_residual), once.first) << "in place differs, " << h.cpu().describe();
  }
}

// ---- Rope, SwiGLU

TEST_P(ComputeDtypeParity, RopeForwardAndBackward) {
  struct Case {
    int64_t sequences, seq_len, num_heads, num_kv_heads, head_dim;
  };
  for (const auto& c : {Case{1, 1, 1, 1, 2},
                        {3, 37, 5, 1, 20},
                        {2, 101, 6, 2, 32},
                        {2, 64, 16, 8, 64},
                        {3, 51, 32, 8, 128},
                        {1, 9, 3, 3, 256}}) {
    Twin qkv(dtype(), {c.sequences * c.seq_len, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim});
    Twin table(DType::kFloat32, {c.seq_len, c.head_dim});
    rope_table(table.cpu(), 500000.0, RopeScaling{});
    upload(table);
    fill(qkv);
    for (const bool inverse : {false, true, true}) {
      on_both([&](Stream& s) { rope({qkv.on(s), table.on(s), c.num_heads, c.num_kv_heads, inverse}, s); });
      expect_close(qkv, inverse ? "inverse" : "forward", tolerance());
    }
  }
}

TEST_P(ComputeDtypeParity, Swiglu) {
  for (const auto& [tokens, intermediate] : {RowSize{1, 1}, {5, 127}, {131, 704}, {67, 7168}, {13, 14336}, {1030, 8}}) {
    Twin out(dtype(), {tokens, intermediate});
    Twin d_out(dtype(), {tokens, intermediate});
    Twin gate_up(dtype(), {tokens, 2 * intermediate});
    Twin d_gate_up(dtype(), {tokens, 2 * intermediate});
    fill(gate_up, 4.0f);
    fill(d_out);
    poison(out);
    poison(d_gate_up);
    on_both([&](Stream& s) { swiglu_forward({out.on(s), gate_up.on(s)}, s); });
    expect_close(out, "out", tolerance());
    on_both([&](Stream& s) { swiglu_backward({d_gate_up.on(s), d_out.on(s), gate_up.on(s)}, s); });
    expect_close(d_gate_up, "d_gate_up", tolerance());
    on_both([&](Stream& s) { swiglu_backward({gate_up.on(s), d_out.on(s), gate_up.on(s)}, s); });
    expect_close(gate_up, "d_gate_up in place", tolerance());
    EXPECT_EQ(gpu_bytes(gate_up), gpu_bytes(d_gate_up));
  }
}

// ---- Amaxes that ops take of what they write

class AmaxParity : public ComputeDtypeParity {
 protected:
  // op(amax) writes `out` on the GPU. The amax is that of the written values, only grows, and changes no other bit.
  template <typename Op>
  void check_amax(const Twin& out, Op op) {
    op(Tensor());
    const std::vector<char> expected = gpu_bytes(out);
    Twin amax(DType::kFloat32, {1});
    for (const float before : {0.0f, 1e20f}) {
      amax.set(0, before);
      upload(amax);
      poison(out);
      op(amax.gpu());
      EXPECT_EQ(gpu_bytes(out), expected) << out.cpu().describe();
      float largest = before;
      for (const float value : gpu_values(out)) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(gpu_values(amax)[0], largest) << out.cpu().describe();
    }
  }

  float amax_after(const std::function<void(const Tensor&)>& op) {
    const Twin amax(DType::kFloat32, {1});
    op(amax.gpu());
    return gpu_values(amax)[0];
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, AmaxParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(AmaxParity, RmsNorm) {
  for (const auto& [tokens, hidden] : kNormSizes) {
    reserve(0, rms_norm_backward_workspace_bytes(hidden, gpu()));
    Twin out(dtype(), {tokens, hidden});
    Twin rstd(DType::kFloat32, {tokens});
    Twin x(dtype(), {tokens, hidden});
    Twin d_out(dtype(), {tokens, hidden});
    Twin weight(dtype(), {hidden});
    Twin d_weight(DType::kFloat32, {hidden});
    fill(x);
    fill(d_out);
    fill(weight, 0.2f, 1.0f);
    const auto forward = [&](const Tensor& amax) {
      rms_norm_forward({.out = out.gpu(),
                        .rstd = rstd.gpu(),
                        .residual_out = {},
                        .x = x.gpu(),
                        .residual = {},
                        .weight = weight.gpu(),
                        .amax = amax},
                       gpu());
    };
    const auto backward = [&](const Tensor& amax) {
      rms_norm_backward({.d_h = out.gpu(),
                         .d_weight = d_weight.gpu(),
                         .d_out = d_out.gpu(),
                         .d_residual = x.gpu(),
                         .h = x.gpu(),
                         .rstd = rstd.gpu(),
                         .weight = weight.gpu(),
                         .amax = amax},
                        gpu());
    };
    check_amax(out, forward);
    check_amax(out, backward);
    d_out.set(d_out.cpu().numel() - 1, std::numeric_limits<float>::quiet_NaN());
    x.set(0, std::numeric_limits<float>::infinity());
    upload(d_out);
    EXPECT_TRUE(std::isnan(amax_after(backward))) << hidden;
    upload(x);
    EXPECT_TRUE(std::isnan(amax_after(forward))) << hidden;
  }
}

TEST_P(AmaxParity, RopeAndSwiglu) {
  for (const auto& [tokens, width] : {RowSize{1, 1}, {5, 127}, {131, 704}, {67, 7168}, {1030, 8}}) {
    Twin out(dtype(), {tokens, width});
    Twin d_out(dtype(), {tokens, width});
    Twin gate_up(dtype(), {tokens, 2 * width});
    Twin d_gate_up(dtype(), {tokens, 2 * width});
    fill(gate_up, 4.0f);
    fill(d_out);
    const auto forward = [&](const Tensor& amax) { swiglu_forward({out.gpu(), gate_up.gpu(), amax}, gpu()); };
    const auto backward = [&](const Tensor& amax) {
      swiglu_backward({d_gate_up.gpu(), d_out.gpu(), gate_up.gpu(), amax}, gpu());
    };
    check_amax(out, forward);
    check_amax(d_gate_up, backward);
    gate_up.set(gate_up.cpu().numel() - 1, std::numeric_limits<float>::quiet_NaN());
    upload(gate_up);
    EXPECT_TRUE(std::isnan(amax_after(forward)));
    EXPECT_TRUE(std::isnan(amax_after(backward)));
  }
  for (const int64_t head_dim : {2, 20, 64, 128}) {
    const int64_t width = (5 + 2 * 3) * head_dim;
    Twin input(dtype(), {74, width});
    Twin qkv(dtype(), {74, width});
    Twin table(DType::kFloat32, {37, head_dim});
    rope_table(table.cpu(), 500000.0, RopeScaling{});
    upload(table);
    fill(input);
    const auto rotate = [&](const Tensor& amax) {
      gpu().copy(qkv.gpu(), input.gpu());
      rope({qkv.gpu(), table.gpu(), 5, 3, false, amax}, gpu());
    };
    check_amax(qkv, rotate);
    input.set(73 * width + width - 1, -1000.0f);  // the last value of v
    upload(input);
    EXPECT_EQ(amax_after(rotate), 1000.0f) << head_dim;
    input.set(73 * width, std::numeric_limits<float>::quiet_NaN());
    upload(input);
    EXPECT_TRUE(std::isnan(amax_after(rotate))) << head_dim;
  }
}

// ---- Cross entropy

// The loss of each row in float64. The CPU op adds a row's exponentials in float32, which is too coarse a reference for
// large vocabularies.
std::vector<double> exact_losses(const Twin& logits, const Twin& targets) {
  const int64_t vocab = logits.cpu().dim(1);
  std::vector<double> losses;
  for (int64_t row = 0; row < logits.cpu().dim(0); ++row) {
    const int32_t target = targets.cpu().data<int32_t>()[row];
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(logits.at(row * vocab + v)));
    losses.push_back(target < 0 ? 0.0 : std::log(sum) - static_cast<double>(logits.at(row * vocab + target)));
  }
  return losses;
}

TEST_P(ComputeDtypeParity, CrossEntropy) {
  // Vocabularies that fit one block, each size of cluster, and no cluster's registers; multiples of 8 and not.
  for (const auto& [tokens, vocab] : {RowSize{1, 2},
                                      {33, 17},
                                      {130, 272},
                                      {37, 1009},
                                      {5, 32000},
                                      {5, 50264},
                                      {9, 128256},
                                      {3, 128257},
                                      {2, 151936},
                                      {2, 262152},
                                      {2, 300000}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin logits(dtype(), {tokens, vocab});
    Twin d_logits(dtype(), {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    if (tokens > 1) targets.set(tokens / 2, -1);
    upload(targets);
    poison(losses);
    on_both([&](Stream& s) {
      cross_entropy({.losses = losses.on(s), .d_logits = {}, .logits = logits.on(s), .targets = targets.on(s)}, s);
    });
    const std::vector<double> exact = exact_losses(logits, targets);
    const std::vector<float> values = gpu_values(losses);
    for (size_t row = 0; row < exact.size(); ++row) {
      EXPECT_NEAR(static_cast<double>(values[row]), exact[row], 2e-6 * (1 + exact[row])) << "vocabulary " << vocab;
    }

    poison(losses);
    poison(d_logits);
    const auto both = [&](Stream& s, const Twin& gradient) {
      cross_entropy({losses.on(s), gradient.on(s), logits.on(s), targets.on(s), 0.125f}, s);
    };
    on_both([&](Stream& s) { both(s, d_logits); });
    EXPECT_EQ(gpu_values(losses), values) << "losses change with d_logits, vocabulary " << vocab;
    expect_close(d_logits, "d_logits", std::max(tolerance(), 1e-4));
    on_both([&](Stream& s) { both(s, logits); });  // in place
    EXPECT_EQ(gpu_bytes(logits), gpu_bytes(d_logits)) << "in place differs, vocabulary " << vocab;
  }
}

// So many rows that a block takes several one after the other, some of them ignored.
TEST_P(ComputeDtypeParity, CrossEntropyOfManyRows) {
  for (const auto& [tokens, vocab] : {RowSize{17001, 272}, {6403, 4112}, {1603, 16392}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin logits(dtype(), {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    for (int64_t t = 0; t < tokens; t += 1 + t % 5) targets.set(t, -1);
    upload(targets);
    const std::vector<double> exact = exact_losses(logits, targets);
    const auto in_place = [&](Stream& s) {
      cross_entropy({losses.on(s), logits.on(s), logits.on(s), targets.on(s), 0.125f}, s);
    };
    poison(losses);
    on_both(in_place);
    const std::vector<float> values = gpu_values(losses);
    for (size_t row = 0; row < exact.size(); ++row) {
      ASSERT_NEAR(static_cast<double>(values[row]), exact[row], 2e-6 * (1 + exact[row])) << row << " of " << tokens;
    }
    expect_close(logits, "d_logits", std::max(tolerance(), 1e-4));
  }
}

TEST_P(ComputeDtypeParity, CrossEntropyShowsNanAndInfinity) {
  for (const int64_t vocab : {272, 1009, 128256}) {
    Twin losses(DType::kFloat32, {4});
    Twin logits(dtype(), {4, vocab});
    Twin targets(DType::kInt32, {4});
    fill(logits);
    logits.set(vocab - 1, std::numeric_limits<float>::quiet_NaN());
    logits.set(2 * vocab - 3, std::numeric_limits<float>::infinity());
    for (int64_t v = 0; v < vocab; ++v) logits.set(2 * vocab + v, std::numeric_limits<float>::quiet_NaN());
    upload(logits);
    fill_integers(targets, 0, 100);
    gpu().zero(losses.gpu());
    cross_entropy({.losses = losses.gpu(), .d_logits = {}, .logits = logits.gpu(), .targets = targets.gpu()}, gpu());
    const std::vector<float> values = gpu_values(losses);
    for (const size_t row : {0, 1, 2})
      EXPECT_TRUE(std::isnan(values[row])) << "vocabulary " << vocab << ", row " << row;
    EXPECT_TRUE(std::isfinite(values[3])) << "vocabulary " << vocab;
  }
}

// ---- AdamW, reductions, casts: flat tensors, aligned and one element off

TEST_P(ComputeDtypeParity, AdamwWithMomentsOfThisDtype) {
  struct Case {
    int64_t n, offset, grad_offset;
  };
  for (const auto& [n, offset, grad_offset] :
       {Case{1, 0, 0}, {7, 1, 1}, {4096, 0, 0}, {4096, 1, 0}, {10007, 0, 0}, {10007, 13, 13}, {10007, 2, 3}}) {
    Twin master(DType::kFloat32, {n}, offset);
    Twin exp_avg(dtype(), {n}, offset);
    Twin exp_avg_sq(dtype(), {n}, offset);
    Twin grad(DType::kFloat32, {n}, grad_offset);
    Twin weight(DType::kBFloat16, {n}, offset);
    Twin norm(DType::kFloat32, {1});
    Twin amax(DType::kFloat32, {1});
    fill(master);
    for (int64_t step = 1; step <= 3; ++step) {
      fill(grad);
      norm.set(0, static_cast<float>(n));
      upload(norm);
      poison(weight);
      const float before = step == 2 ? 1000.0f : 0.0f;
      amax.set(0, before);
      upload(amax);
      on_both([&](Stream& s) {
        adamw({.master = master.on(s),
               .exp_avg = exp_avg.on(s),
               .exp_avg_sq = exp_avg_sq.on(s),
               .grad = grad.on(s),
               .weight = weight.on(s),
               .amax = amax.on(s),
               .grad_sum_of_squares = norm.on(s),
               .options = {.lr = 0.01f, .weight_decay = 0.1f, .grad_clip = step == 2 ? 0.0f : 1.0f, .step = step}},
              s);
      });
      expect_close(master, "master", 1e-5);
      expect_close(weight, "weight", 1e-3);
      expect_close(exp_avg, "exp_avg", tolerance());
      expect_close(exp_avg_sq, "exp_avg_sq", tolerance());
      float largest = before;
      for (const float value : gpu_values(master)) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(gpu_values(amax)[0], largest) << "amax of " << n << " weights";
    }
  }
}

// Weights that are not wanted, an amax that is not, and one that an infinite gradient breaks.
TEST_F(ParityTest, AdamwWithoutWeight) {
  constexpr int64_t kCount = 5003;
  Twin master(DType::kFloat32, {kCount}, 3);
  Twin exp_avg(DType::kFloat32, {kCount}, 3);
  Twin exp_avg_sq(DType::kFloat32, {kCount}, 3);
  Twin grad(DType::kFloat32, {kCount}, 3);
  Twin amax(DType::kFloat32, {1});
  fill(master);
  fill(grad);
  const auto step = [&](bool with_amax) {
    on_both([&](Stream& s) {
      adamw({.master = master.on(s),
             .exp_avg = exp_avg.on(s),
             .exp_avg_sq = exp_avg_sq.on(s),
             .grad = grad.on(s),
             .weight = {},
             .amax = with_amax ? amax.on(s) : Tensor(),
             .grad_sum_of_squares = {},
             .options = {.lr = 0.01f}},
            s);
    });
  };
  step(false);
  expect_close(master, "master", 1e-5);
  EXPECT_EQ(gpu_values(amax)[0], 0.0f);
  for (const int64_t broken : {int64_t{0}, kCount - 1}) {
    amax.set(0, 0.0f);
    upload(amax);
    fill(grad);
    fill(master);
    gpu().zero(exp_avg.gpu());
    gpu().zero(exp_avg_sq.gpu());
    grad.set(broken, std::numeric_limits<float>::infinity());
    upload(grad);
    step(true);
    EXPECT_TRUE(std::isnan(gpu_values(amax)[0])) << broken;
  }
}

TEST_F(ParityTest, Reductions) {
  reserve(0, reduce_workspace_bytes(gpu()));
  for (const int64_t n : {1, 3, 511, 10007, 3000001}) {
    for (const int64_t offset : {0, 1}) {
      Twin x(DType::kFloat32, {n}, offset);
      Twin total(DType::kFloat32, {1});
      fill(x, 1.0f, 0.5f);
      fill(total);
      on_both([&](Stream& s) { sum_of_squares({total.on(s), x.on(s)}, s); });
      expect_close(total, "sum of squares", 1e-6);
      const std::vector<char> once = [&] {
        gpu().zero(total.gpu());
        sum_of_squares({total.gpu(), x.gpu()}, gpu());
        return gpu_bytes(total);
      }();
      gpu().zero(total.gpu());
      sum_of_squares({total.gpu(), x.gpu()}, gpu());
      EXPECT_EQ(gpu_bytes(total), once) << "not deterministic, " << n;
      upload(total);
      on_both([&](Stream& s) { sum({total.on(s), x.on(s)}, s); });
      expect_close(total, "sum", 1e-6);
    }
  }
}

TEST_F(ParityTest, Cast) {
  for (const DType from : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t n : {1, 8, 1009, 65537}) {
        for (const int64_t offset : {0, 1}) {
          Twin x(from, {n}, offset);
          Twin out(to, {n}, offset);
          fill(x);
          poison(out);
          on_both([&](Stream& s) { cast({out.on(s), x.on(s)}, s); });
          EXPECT_EQ(relative_error(out), 0.0) << dtype_name(from) << " to " << dtype_name(to) << ", " << n;
        }
      }
    }
  }
}

// Memory is handed out zeroed; what is copied in right away must not be zeroed after it arrived.
TEST(DeviceMemoryParity, IsZeroedBeforeItIsHandedOut) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  Stream stream = Stream::cuda(0);
  constexpr int64_t kBytes = int64_t{8} << 30;
  const Buffer memory = Buffer::device(Device::kCuda, kBytes);
  const std::vector<int32_t> written(1024, 7);
  std::vector<int32_t> read(written.size());
  const auto bytes = static_cast<int64_t>(written.size() * sizeof(int32_t));
  char* end = static_cast<char*>(memory.data()) + kBytes - bytes;
  stream.copy(end, written.data(), bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stream.copy(read.data(), end, bytes);
  stream.synchronize();
  EXPECT_EQ(read, written);
}

}  // namespace
}  // namespace octavo
