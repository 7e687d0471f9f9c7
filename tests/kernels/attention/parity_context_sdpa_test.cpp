// Attention of ranks that share sequences, on the GPU compared with the CPU.
#include "kernels/attention/sdpa.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_context_sdpa_test {
namespace {

class ContextSdpaParity : public ParityTest {
 protected:
  struct Tensors {
    Twin qkv, kv, out, lse, d_out, d_qkv, d_kv;
    explicit Tensors(const SdpaShape& s)
        : qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}),
          kv(DType::kBFloat16, {s.batch * s.whole_seq_len(), s.kv_width()}),
          out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          lse(DType::kFloat32, {2 * s.batch, s.num_heads, s.seq_len / 2}),
          d_out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          d_qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}),
          d_kv(DType::kBFloat16, {s.batch * s.whole_seq_len(), s.kv_width()}) {}
  };

  // Runs of one rank in documents of the given lengths, which repeat. The last document of a sequence ends with the
  // sequence. Without lengths there are no documents.
  class TwinDocuments {
   public:
    TwinDocuments(const SdpaShape& shape, const std::vector<int64_t>& lengths) {
      if (lengths.empty()) return;
      const int64_t whole = shape.whole_seq_len();
      std::vector<int32_t> start;
      for (int64_t row = 0, next = 0; row < shape.batch; ++row) {
        std::vector<int32_t> of_whole;
        for (int64_t t = 0, end = 0, begin = 0; t < whole; ++t) {
          if (t == end) begin = t, end += lengths[static_cast<size_t>(next++) % lengths.size()];
          of_whole.push_back(static_cast<int32_t>(begin));
        }
        for (int64_t t = 0; t < shape.seq_len; ++t) {
          start.push_back(of_whole[static_cast<size_t>(shape.context.position(t, whole))]);
        }
      }
      append_documents(start, shape.seq_len, list_, shape.context);
      twin_.emplace(DType::kInt32, std::vector<int64_t>{std::ssize(list_), kNumbersOfDocument});
      write_documents(list_, twin_->cpu().data<int32_t>());
    }
    Documents on(const Stream& s) const { return {.list = list_, .device = twin_ ? twin_->on(s) : Tensor()}; }
    const std::optional<Twin>& twin() const { return twin_; }

   private:
    std::vector<Document> list_;
    std::optional<Twin> twin_;
  };

  static SdpaShape shape_of(const SdpaShape& whole, const ContextRank& rank) {
    SdpaShape shape = whole;
    shape.context = rank;
    shape.seq_len = rank.share(whole.seq_len);
    return shape;
  }

  void forward(const SdpaShape& shape, Tensors& t, const TwinDocuments& documents, bool within_documents) {
    if (within_documents) upload(*documents.twin());
    reserve(sdpa_workspace_bytes(shape, DType::kBFloat16, cpu(), within_documents),
            sdpa_workspace_bytes(shape, DType::kBFloat16, gpu(), within_documents));
    fill(t.qkv, 1.5f);
    fill(t.kv, 1.5f);
    fill(t.d_out);
    poison(t.out);
    poison(t.lse);
    on_both([&](Stream& s) {
      sdpa_forward({.shape = shape,
                    .out = t.out.on(s),
                    .lse = t.lse.on(s),
                    .qkv = t.qkv.on(s),
                    .kv = t.kv.on(s),
                    .documents = documents.on(s)},
                   s);
    });
  }
  static void backward(const SdpaShape& shape, const Tensors& t, Stream& s, const TwinDocuments& documents) {
    sdpa_backward({.shape = shape,
                   .d_qkv = t.d_qkv.on(s),
                   .d_kv = t.d_kv.on(s),
                   .d_out = t.d_out.on(s),
                   .out = t.out.on(s),
                   .lse = t.lse.on(s),
                   .qkv = t.qkv.on(s),
                   .kv = t.kv.on(s),
                   .documents = documents.on(s)},
                  s);
  }

  // Compares one rank on the GPU with the CPU. `whole` is the shape of whole sequences, and `lengths` are the lengths
  // of documents, if any.
  void compare(const SdpaShape& whole, const ContextRank& rank, const std::vector<int64_t>& lengths = {}) {
    const SdpaShape shape = shape_of(whole, rank);
    SCOPED_TRACE(fmt::format("rank {} of {}, batch {}, seq_len {}, heads {}/{} of {}, documents of {}", rank.rank,
                             rank.size, whole.batch, whole.seq_len, whole.num_heads, whole.num_kv_heads, whole.head_dim,
                             fmt::join(lengths, ", ")));
    const TwinDocuments documents(shape, lengths);
    Tensors t(shape);
    forward(shape, t, documents, !lengths.empty());
    expect_close(t.out, "out", 1e-2);
    expect_close(t.lse, "lse", 1e-3);
    upload(t.out);  // Backward on both sides reads the CPU's results, so that errors do not accumulate.
    upload(t.lse);
    fill(t.d_qkv);  // Backward must not change the columns of k and v.
    poison(t.d_kv);
    on_both([&](Stream& s) { backward(shape, t, s, documents); });
    expect_close(t.d_qkv, "d_qkv", 1e-2);
    expect_close(t.d_kv, "d_kv", 1.5e-2);  // Tolerance for d_kv, which is the sum of two rounded chunks.
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

// The documents begin at the first token of a chunk, within it, one chunk or two chunks earlier. They have one token,
// many per chunk or one per sequence. One case has chunks of odd length.
TEST_F(ContextSdpaParity, WithinDocuments) {
  for (const bool deterministic : {false, true}) {
    gpu().set_deterministic(deterministic);
    for (const SdpaShape& whole :
         {SdpaShape{1, 512, 2, 2, 64}, {2, 768, 4, 1, 128}, {1, 1024, 8, 2, 32}, {2, 4 * 101, 4, 2, 64}}) {
      const int64_t ranks = whole.seq_len == 404 ? 2 : whole.seq_len / 256;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (const auto& lengths : std::vector<std::vector<int64_t>>{
                 {200, 31, 1, 90}, {128}, {1}, {300, 5}, {whole.seq_len}, {whole.seq_len - 1}, {130, 600}}) {
          compare(whole, {.rank = rank, .size = ranks}, lengths);
        }
      }
    }
  }
}

// The documents of some chunks take several launches (kernels/flash_attention/flash_documents.h).
TEST_F(ContextSdpaParity, LongChunksWithinDocuments) {
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{1100, 7, 300}, {3000}, {40, 900, 2500}, {11, 5, 23}}) {
    for (int64_t rank = 0; rank < 2; ++rank) compare({2, 4096, 8, 2, 128}, {.rank = rank, .size = 2}, lengths);
    for (int64_t rank = 0; rank < 3; ++rank) compare({1, 6 * 401, 6, 2, 64}, {.rank = rank, .size = 3}, lengths);
  }
}

// If a rank has runs of one document in both of its chunks, the gradient of a key of that document is the sum of two
// terms.
TEST_F(ContextSdpaParity, DeterministicBackwardWithinDocuments) {
  gpu().set_deterministic(true);
  const SdpaShape whole{2, 1536, 8, 2, 128};
  for (int64_t rank = 0; rank < 3; ++rank) {
    const SdpaShape shape = shape_of(whole, {.rank = rank, .size = 3});
    const TwinDocuments documents(shape, {1000, 90, 31, 1});
    Tensors t(shape);
    forward(shape, t, documents, true);
    fill(t.d_qkv);
    backward(shape, t, gpu(), documents);
    const std::vector<char> d_qkv = gpu_bytes(t.d_qkv);
    const std::vector<char> d_kv = gpu_bytes(t.d_kv);
    for (int i = 0; i < 5; ++i) {
      poison(t.d_kv);
      backward(shape, t, gpu(), documents);
      EXPECT_EQ(gpu_bytes(t.d_qkv), d_qkv);
      EXPECT_EQ(gpu_bytes(t.d_kv), d_kv);
    }
  }
}

TEST_F(ContextSdpaParity, ChunksOfSeveralTiles) {
  compare({1, 1536, 4, 2, 128}, {.rank = 0, .size = 2});
  compare({2, 2048, 8, 2, 128}, {.rank = 1, .size = 2});
}

}  // namespace
}  // namespace octavo::parity_context_sdpa_test
