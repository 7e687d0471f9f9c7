// Attention of ranks that share sequences on the GPU against the CPU.
#include "kernels/attention/context_sdpa.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_context_sdpa_test {
namespace {

class ContextSdpaParity : public ParityTest {
 protected:
  struct Tensors {
    Twin qkv, kv, out, lse, d_out, d_qkv, d_kv;
    explicit Tensors(const ContextSdpaShape& shape) : Tensors(shape, shape.queries) {}
    Tensors(const ContextSdpaShape& shape, const SdpaShape& s)
        : qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}),
          kv(DType::kBFloat16, {s.batch * shape.whole_seq_len(), shape.kv_width()}),
          out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          lse(DType::kFloat32, {2 * s.batch, s.num_heads, s.seq_len / 2}),
          d_out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          d_qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}),
          d_kv(DType::kBFloat16, {s.batch * shape.whole_seq_len(), shape.kv_width()}) {}
  };

  // `whole`: of whole sequences.
  void compare(const SdpaShape& whole, const ContextRank& rank) {
    ContextSdpaShape shape{whole, rank};
    shape.queries.seq_len = rank.share(whole.seq_len);
    SCOPED_TRACE(fmt::format("rank {} of {}, batch {}, seq_len {}, heads {}/{} of {}", rank.rank, rank.size,
                             whole.batch, whole.seq_len, whole.num_heads, whole.num_kv_heads, whole.head_dim));
    reserve(context_sdpa_workspace_bytes(shape, DType::kBFloat16, cpu()),
            context_sdpa_workspace_bytes(shape, DType::kBFloat16, gpu()));
    Tensors t(shape);
    fill(t.qkv, 1.5f);
    fill(t.kv, 1.5f);
    fill(t.d_out);
    poison(t.out);
    poison(t.lse);
    on_both([&](Stream& s) {
      context_sdpa_forward({.shape = shape,
                            .out = t.out.on(s),
                            .lse = t.lse.on(s),
                            .qkv = t.qkv.on(s),
                            .kv = t.kv.on(s),
                            .documents = {}},
                           s);
    });
    expect_close(t.out, "out", 1e-2);
    expect_close(t.lse, "lse", 1e-3);
    upload(t.out);  // what the CPU made of them, so that errors do not add up
    upload(t.lse);
    fill(t.d_qkv);  // the columns of k and v are left as they are
    poison(t.d_kv);
    on_both([&](Stream& s) {
      context_sdpa_backward({.shape = shape,
                             .d_qkv = t.d_qkv.on(s),
                             .d_kv = t.d_kv.on(s),
                             .d_out = t.d_out.on(s),
                             .out = t.out.on(s),
                             .lse = t.lse.on(s),
                             .qkv = t.qkv.on(s),
                             .kv = t.kv.on(s),
                             .documents = {}},
                            s);
    });
    expect_close(t.d_qkv, "d_qkv", 1e-2);
    expect_close(t.d_kv, "d_kv", 1.5e-2);  // the sum of two pieces, each rounded
  }
};

TEST_F(ContextSdpaParity, EveryRank) {
  for (const bool deterministic : {false, true}) {
    gpu().set_deterministic(deterministic);
    for (const SdpaShape& whole : {SdpaShape{1, 512, 2, 2, 64}, {2, 768, 4, 1, 128}, {1, 1024, 8, 2, 32}}) {
      const int64_t ranks = whole.seq_len / 256;
      for (int64_t rank = 0; rank < ranks; ++rank) compare(whole, {.rank = rank, .size = ranks});
    }
  }
}

TEST_F(ContextSdpaParity, PiecesOfSeveralTiles) {
  compare({1, 1536, 4, 2, 128}, {.rank = 0, .size = 2});
  compare({2, 2048, 8, 2, 128}, {.rank = 1, .size = 2});
}

}  // namespace
}  // namespace octavo::parity_context_sdpa_test
