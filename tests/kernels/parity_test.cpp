// Octavo's own kernels on the GPU compared with the same ops on the CPU. The inputs are random, float32 and bfloat16,
// with odd, prime and realistic sizes and the aliasing that the contracts allow. Ops that promise determinism must give
// equal bits twice.
#include "tests/kernels/parity.h"

#include <functional>

#include "kernels/attention/rope.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"

namespace octavo::parity_test {
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

// Sorts the positions by id. Positions with equal ids stay in ascending order.
void sort_positions(Twin& order, const Twin& ids) {
  auto* positions = order.cpu().data<int32_t>();
  std::iota(positions, positions + order.cpu().numel(), 0);
  const auto* id = ids.cpu().data<int32_t>();
  std::stable_sort(positions, positions + order.cpu().numel(), [&](int32_t a, int32_t b) { return id[a] < id[b]; });
}

TEST_P(ComputeDtypeParity, EmbeddingBackward) {
  // The ids are in [0, used). The cases have one id for all tokens, runs around the length at which the kernel splits
  // them, and many short runs.
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
    const Exact exact = exact_embedding_backward(d_table.cpu(), d_out.cpu(), ids.cpu());
    on_both(backward);
    expect_close(d_table, "d_table", 1e-5);
    expect_exact(d_table, "embedding_backward d_table", exact);

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

// The table has the rows of ids [begin, begin + rows) only, as on one rank of a tensor-parallel group. The cases have
// tokens with ids below, in and above this range, ids that occur often, and ids that do not occur.
TEST_P(ComputeDtypeParity, EmbeddingOfAPartOfTheVocabulary) {
  struct Case {
    int64_t tokens, hidden;
    int32_t used;  // The ids are in [0, used).
    int64_t begin, rows;
  };
  for (const auto& [tokens, hidden, used, begin, rows] : {Case{1, 8, 3, 1, 1},
                                                          {4099, 64, 4, 1, 2},
                                                          {1000, 256, 59, 20, 20},
                                                          {777, 127, 1009, 300, 300},
                                                          {2048, 1000, 5003, 4000, 1003},
                                                          {2048, 512, 128000, 64000, 1000},
                                                          {500, 64, 100, 200, 72}}) {
    Twin out(dtype(), {tokens, hidden});
    Twin ids(DType::kInt32, {tokens});
    Twin order(DType::kInt32, {tokens});
    Twin table(dtype(), {rows, hidden});
    Twin d_out(dtype(), {tokens, hidden});
    Twin d_table(DType::kFloat32, {rows, hidden});
    fill_integers(ids, 0, used);
    sort_positions(order, ids);
    upload(order);
    for (Twin* twin : {&table, &d_out, &d_table}) fill(*twin);
    poison(out);
    const Exact exact = exact_embedding_backward(d_table.cpu(), d_out.cpu(), ids.cpu(), begin);
    on_both([&](Stream& s) {
      embedding_forward({.out = out.on(s), .ids = ids.on(s), .table = table.on(s), .vocab_begin = begin}, s);
      embedding_backward({d_table.on(s), d_out.on(s), ids.on(s), order.on(s), begin}, s);
    });
    EXPECT_EQ(relative_error(out), 0.0) << out.cpu().describe() << ", rows from " << begin;
    expect_close(d_table, "d_table", 1e-5);
    expect_exact(d_table, "embedding_backward d_table", exact);
  }
}

TEST_P(ComputeDtypeParity, EmbeddingPartsEqualTheWholeTable) {
  constexpr int64_t kTokens = 3001;
  constexpr int64_t kVocab = 90;
  constexpr int64_t kHidden = 264;
  Twin ids(DType::kInt32, {kTokens});
  Twin order(DType::kInt32, {kTokens});
  Twin d_out(dtype(), {kTokens, kHidden});
  const Twin whole(DType::kFloat32, {kVocab, kHidden});
  const Twin parts(DType::kFloat32, {kVocab, kHidden});
  fill_integers(ids, 0, kVocab);
  // Id 31 is the last row of its rank's part.
  for (int64_t t = 0; t < kTokens; t += 3) ids.set(t, 31);
  upload(ids);
  sort_positions(order, ids);
  upload(order);
  fill(d_out);
  embedding_backward({whole.gpu(), d_out.gpu(), ids.gpu(), order.gpu()}, gpu());
  int64_t begin = 0;
  for (const int64_t end : {32, 33, 90}) {
    embedding_backward({parts.gpu().rows(begin, end), d_out.gpu(), ids.gpu(), order.gpu(), begin}, gpu());
    begin = end;
  }
  EXPECT_EQ(gpu_bytes(parts), gpu_bytes(whole));
}

// ---- RMSNorm

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
    const ExactRmsNorm exact = exact_rms_norm(x.cpu(), weight.cpu());
    expect_exact(out, "rms_norm_forward out", exact.out);
    expect_exact(rstd, "rms_norm_forward rstd", exact.rstd);

    poison(out);
    poison(rstd);
    // The output h replaces x.
    on_both([&](Stream& s) {
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
    const ExactRmsNorm with_residual = exact_rms_norm(x.cpu(), weight.cpu());
    expect_exact(out, "rms_norm_forward out", with_residual.out);
    expect_exact(rstd, "rms_norm_forward rstd", with_residual.rstd);
  }
}

TEST_P(ComputeDtypeParity, RmsNormBackward) {
  for (const auto& [tokens, hidden] : kNormSizes) {
    reserve(rms_norm_backward_workspace_bytes(hidden, cpu()), rms_norm_backward_workspace_bytes(hidden, gpu()));
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
    const auto exact = [&](const Tensor& residual) {
      return exact_rms_norm_backward(d_weight.cpu(), d_out.cpu(), residual, h.cpu(), rstd.cpu(), weight.cpu());
    };
    const ExactRmsNormBackward plain = exact({});
    on_both([&](Stream& s) { backward(s, d_h, false); });
    expect_close(d_h, "d_h", tolerance());
    expect_close(d_weight, "d_weight", 1e-5);
    expect_exact(d_h, "rms_norm_backward d_h", plain.d_h);
    expect_exact(d_weight, "rms_norm_backward d_weight", plain.d_weight);

    gpu().zero(d_weight.gpu());
    backward(gpu(), d_h, true);
    const auto once = std::pair(gpu_bytes(d_h), gpu_bytes(d_weight));
    gpu().zero(d_weight.gpu());
    backward(gpu(), d_h, true);
    EXPECT_EQ(std::pair(gpu_bytes(d_h), gpu_bytes(d_weight)), once) << "not deterministic, " << h.cpu().describe();

    gpu().copy(d_weight.gpu(), d_weight.cpu());
    const ExactRmsNormBackward with_residual = exact(d_residual.cpu());
    // The output d_h replaces d_residual.
    on_both([&](Stream& s) { backward(s, d_residual, true); });
    expect_close(d_residual, "d_h over d_residual", tolerance());
    expect_close(d_weight, "d_weight with residual", 1e-5);
    expect_exact(d_residual, "rms_norm_backward d_h", with_residual.d_h);
    expect_exact(d_weight, "rms_norm_backward d_weight", with_residual.d_weight);
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
      upload(qkv);  // Both sides start from the CPU's result, so that errors do not accumulate.
      const Exact exact = exact_rope(qkv.cpu(), table.cpu(), {c.num_heads + c.num_kv_heads, c.num_kv_heads, inverse});
      on_both([&](Stream& s) { rope({qkv.on(s), table.on(s), c.num_heads, c.num_kv_heads, inverse}, s); });
      expect_close(qkv, inverse ? "inverse" : "forward", tolerance());
      expect_exact(qkv, "rope qkv", exact);
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
    const ExactSwiglu exact = exact_swiglu(gate_up.cpu(), d_out.cpu());
    on_both([&](Stream& s) { swiglu_forward({out.on(s), gate_up.on(s)}, s); });
    expect_close(out, "out", tolerance());
    expect_exact(out, "swiglu_forward out", exact.out);
    on_both([&](Stream& s) { swiglu_backward({d_gate_up.on(s), d_out.on(s), gate_up.on(s)}, s); });
    expect_close(d_gate_up, "d_gate_up", tolerance());
    expect_exact(d_gate_up, "swiglu_backward d_gate_up", exact.d_gate_up);
    on_both([&](Stream& s) { swiglu_backward({gate_up.on(s), d_out.on(s), gate_up.on(s)}, s); });
    expect_close(gate_up, "d_gate_up in place", tolerance());
    EXPECT_EQ(gpu_bytes(gate_up), gpu_bytes(d_gate_up));
    // Backward can also recompute the output of forward, here in place of d_out, with equal bits.
    swiglu_forward({out.gpu(), gate_up.gpu()}, gpu());
    swiglu_backward({.d_gate_up = gate_up.gpu(), .d_out = d_out.gpu(), .gate_up = gate_up.gpu(), .out = d_out.gpu()},
                    gpu());
    EXPECT_EQ(gpu_bytes(d_out), gpu_bytes(out));
  }
}

// ---- Amaxes of the outputs of ops

class AmaxParity : public ComputeDtypeParity {
 protected:
  // The function op(amax) writes `out` on the GPU. The amax must be that of the written values, must never decrease,
  // and must not change any bit of `out`.
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
    Twin slope(DType::kFloat32, {1});
    Twin amax(DType::kFloat32, {1});
    for (const int64_t largest : {int64_t{0}, gate_up.cpu().numel() - 1}) {
      gate_up.set(largest, largest == 0 ? -100.0f : 100.0f);
      for (const Twin* twin : {&gate_up, &slope, &amax}) upload(*twin);
      on_both([&](Stream& s) {
        swiglu_forward(
            {.out = out.on(s), .gate_up = gate_up.on(s), .amax = amax.on(s), .cast = {}, .slope = slope.on(s)}, s);
      });
      expect_equal_bytes(slope, "slope");
      EXPECT_EQ(gpu_values(slope)[0], largest == 0 ? 100.0f : kLargestSiluSlope * 100.0f);
    }
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
    input.set(73 * width + width - 1, -1000.0f);  // The index is that of the last value of v.
    upload(input);
    EXPECT_EQ(amax_after(rotate), 1000.0f) << head_dim;
    input.set(73 * width, std::numeric_limits<float>::quiet_NaN());
    upload(input);
    EXPECT_TRUE(std::isnan(amax_after(rotate))) << head_dim;
  }
}

}  // namespace
}  // namespace octavo::parity_test
