// The ops that cuBLASLt and cuDNN run on the GPU against the same ops on the CPU.
#include "core/error.h"
#include "kernels/attention/sdpa.h"
#include "kernels/flash_attention/flash_documents.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/tuned_algorithms.h"
#include "tests/kernels/attention/exact_sdpa.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_libraries_test {
namespace {

// ---- Matrix multiplication

struct ProductSize {
  int64_t m, n, k;
};
const ProductSize kProductSizes[] = {{1, 1, 1},      {1, 272, 256},    {127, 131, 137},
                                     {33, 64, 1001}, {264, 520, 1032}, {512, 768, 1024}};

class MatmulParity : public ComputeDtypeParity {
 protected:
  // Compares a matmul on the CPU and on the GPU with its exact result, in all four layouts, with and without
  // accumulation.
  void compare(const ProductSize& size, DType result) {
    const auto& [m, n, k] = size;
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        Twin a(dtype(), transpose_a ? std::vector{k, m} : std::vector{m, k});
        Twin b(dtype(), transpose_b ? std::vector{n, k} : std::vector{k, n});
        Twin d(result, {m, n});
        fill(a);
        fill(b);
        poison(d);
        for (const bool accumulate : {false, true}) {
          const auto arguments = [&](const Stream& s) {
            return Matmul{.d = d.on(s),
                          .a = a.on(s),
                          .b = b.on(s),
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .accumulate = accumulate};
          };
          const Exact exact = exact_matmul(arguments(cpu()));
          on_both([&](Stream& s) { matmul(arguments(s), s); });
          expect_close(d, accumulate ? "d accumulated" : "d", tolerance_of(result));
          expect_exact(d, fmt::format("matmul of {} to {}", dtype_name(dtype()), dtype_name(result)), exact);
          upload(d);  // The GPU continues from the CPU's result, so that errors do not accumulate.
        }
      }
    }
  }

  void reserve_for(const ProductSize& s) {
    reserve(matmul_workspace_bytes(s.m, s.n, s.k, dtype(), cpu()),
            matmul_workspace_bytes(s.m, s.n, s.k, dtype(), gpu()));
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, MatmulParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(MatmulParity, FastestCandidate) {
  for (const ProductSize& size : kProductSizes) {
    reserve_for(size);
    compare(size, dtype());
    compare(size, DType::kFloat32);
  }
}

// A stream that takes over the choices of another stream measures nothing itself and gives the same bits.
TEST_P(MatmulParity, TakesAlgorithmsChosenBefore) {
  const ProductSize size{512, 768, 1024};
  reserve_for(size);
  Twin a(dtype(), {size.m, size.k});
  Twin b(dtype(), {size.k, size.n});
  Twin d(dtype(), {size.m, size.n});
  fill(a);
  fill(b);
  const auto product = [&](Stream& s) {
    matmul({.d = d.gpu(), .a = a.gpu(), .b = b.gpu()}, s);
    s.synchronize();
    return gpu_bytes(d);
  };
  const auto first = product(gpu());
  const auto& chosen = gpu().state<TunedAlgorithms>();
  EXPECT_EQ(chosen.num_timed(), 1);
  Stream second = Stream::cuda(0);
  second.set_workspace(Tensor(gpu().workspace(gpu().workspace_bytes()), DType::kUInt8, {gpu().workspace_bytes()}));
  auto& taken = second.state<TunedAlgorithms>();
  taken.add(chosen.text("a GPU"), "a GPU");
  poison(d);
  EXPECT_EQ(product(second), first);
  EXPECT_EQ(taken.num_timed(), 0);
}

TEST_P(MatmulParity, Deterministic) {
  gpu().set_deterministic(true);
  // The matmul has few results with long sums, for which cuBLASLt prefers split-K.
  const ProductSize size{64, 72, 8192};
  reserve_for(size);
  compare(size, DType::kFloat32);
  Twin a(dtype(), {size.m, size.k});
  Twin b(dtype(), {size.k, size.n});
  Twin d(DType::kFloat32, {size.m, size.n});
  fill(a);
  fill(b);
  const auto product = [&] {
    poison(d);
    matmul({.d = d.gpu(), .a = a.gpu(), .b = b.gpu()}, gpu());
    return gpu_bytes(d);
  };
  const auto once = product();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(product(), once);
}

// ---- Attention

class SdpaParity : public ParityTest {
 protected:
  struct Tensors {
    Twin qkv, out, lse, d_out, d_qkv;
    explicit Tensors(const SdpaShape& s)
        : qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}),
          out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len}),
          d_out(DType::kBFloat16, {s.batch * s.seq_len, s.out_width()}),
          d_qkv(DType::kBFloat16, {s.batch * s.seq_len, s.qkv_width()}) {}
  };

  // The documents of a micro-batch on both sides. They are absent after default construction.
  class TwinDocuments {
   public:
    TwinDocuments() = default;
    // The documents have the given lengths, which repeat. The last document of a sequence ends with the sequence.
    TwinDocuments(const SdpaShape& shape, const std::vector<int64_t>& lengths) {
      std::vector<int32_t> start;
      for (int64_t row = 0, next = 0; row < shape.batch; ++row) {
        for (int64_t t = 0, end = 0, begin = 0; t < shape.seq_len; ++t) {
          if (t == end) begin = t, end += lengths[static_cast<size_t>(next++) % lengths.size()];
          start.push_back(static_cast<int32_t>(begin));
        }
      }
      append_documents(start, shape.seq_len, list_);
      twin_.emplace(DType::kInt32, std::vector<int64_t>{static_cast<int64_t>(list_.size()), kNumbersOfDocument});
      write_documents(list_, twin_->cpu().data<int32_t>());
    }
    Documents on(const Stream& s) const { return {.list = list_, .device = twin_ ? twin_->on(s) : Tensor()}; }
    const std::optional<Twin>& twin() const { return twin_; }

   private:
    std::vector<Document> list_;
    std::optional<Twin> twin_;
  };

  void reserve_for(const SdpaShape& s, bool within_documents = false) {
    reserve(sdpa_workspace_bytes(s, DType::kBFloat16, cpu(), within_documents),
            sdpa_workspace_bytes(s, DType::kBFloat16, gpu(), within_documents));
  }

  static SdpaBackward backward_arguments(const SdpaShape& shape, const Tensors& t, const Stream& s,
                                         const Documents& documents = {}) {
    return {.shape = shape,
            .d_qkv = t.d_qkv.on(s),
            .d_out = t.d_out.on(s),
            .out = t.out.on(s),
            .lse = t.lse.on(s),
            .qkv = t.qkv.on(s),
            .documents = documents};
  }
  static void backward(const SdpaShape& shape, const Tensors& t, Stream& s, const Documents& documents = {}) {
    sdpa_backward(backward_arguments(shape, t, s, documents), s);
  }

  // Reorders the log-sum-exp on the GPU from its layout within documents (kernels/flash_attention/flash_documents.h) to
  // that of sequences, or back.
  void reorder_lse(const SdpaShape& shape, const Twin& lse, bool to_sequences) {
    const std::vector<char> bytes = gpu_bytes(lse);
    std::vector<float> from(static_cast<size_t>(lse.gpu().numel()));
    std::memcpy(from.data(), bytes.data(), bytes.size());
    std::vector<float> to(from.size());
    const int64_t rows = window_tokens(shape) / shape.seq_len;
    for (int64_t i = 0; i < std::ssize(from); ++i) {
      const int64_t sequence = i / (shape.num_heads * shape.seq_len);
      const int64_t head = i / shape.seq_len % shape.num_heads;
      const int64_t first = sequence / rows * rows;
      const int64_t in_window = std::min(rows, shape.batch - first);
      const int64_t j =
          (first * shape.num_heads + head * in_window + sequence - first) * shape.seq_len + i % shape.seq_len;
      to[static_cast<size_t>(to_sequences ? i : j)] = from[static_cast<size_t>(to_sequences ? j : i)];
    }
    gpu().copy(lse.gpu().raw(), to.data(), lse.gpu().bytes());
    gpu().synchronize();
  }
  static bool has_windows(const SdpaShape& shape, const TwinDocuments& documents) {
    return documents.twin().has_value() && flash_attends(shape);
  }

  void compare_forward(const SdpaShape& shape, Tensors& t, const TwinDocuments& documents) {
    poison(t.out);
    poison(t.lse);
    on_both([&](Stream& s) {
      sdpa_forward(
          {.shape = shape, .out = t.out.on(s), .lse = t.lse.on(s), .qkv = t.qkv.on(s), .documents = documents.on(s)},
          s);
    });
    if (has_windows(shape, documents)) reorder_lse(shape, t.lse, true);
    expect_close(t.out, "out", 1e-2);
    expect_close(t.lse, "lse", 1e-3);
    const ExactSdpa exact = exact_sdpa_forward(shape, t.qkv.cpu(), documents.on(cpu()));
    expect_exact(t.out, "sdpa_forward out", exact.out);
    expect_exact(t.lse, "sdpa_forward lse", exact.lse);
  }

  // Sets the scores of two query heads that share a key/value head to about -120.
  void make_scores_very_negative(const SdpaShape& shape, Tensors& t) {
    for (int64_t token = 0; token < shape.batch * shape.seq_len; ++token) {
      const int64_t row = token * shape.qkv_width();
      for (const int64_t head : {0, 1}) t.qkv.set(row + head * shape.head_dim, 1.0f);
      t.qkv.set(row + 2 * shape.head_dim, -120.0f * std::sqrt(static_cast<float>(shape.head_dim)));
    }
    upload(t.qkv);
  }

  // Requires that t.qkv is filled. The tolerance allows for the GPU's rounding of probabilities and their gradients to
  // bfloat16.
  void compare(const SdpaShape& shape, Tensors& t, double tolerance = 1e-2, const TwinDocuments& documents = {}) {
    SCOPED_TRACE("batch " + std::to_string(shape.batch) + ", seq_len " + std::to_string(shape.seq_len) + ", heads " +
                 std::to_string(shape.num_heads) + "/" + std::to_string(shape.num_kv_heads) + " of " +
                 std::to_string(shape.head_dim) + ", " + std::to_string(documents.on(cpu()).size()) + " documents");
    reserve_for(shape, documents.twin().has_value());
    if (documents.twin()) upload(*documents.twin());
    fill(t.d_out);
    compare_forward(shape, t, documents);
    upload(t.out);  // Backward on both sides reads the CPU's results, so that errors do not accumulate.
    upload(t.lse);
    if (has_windows(shape, documents)) reorder_lse(shape, t.lse, false);
    poison(t.d_qkv);
    on_both([&](Stream& s) { backward(shape, t, s, documents.on(s)); });
    expect_close(t.d_qkv, "d_qkv", tolerance);
    expect_exact(t.d_qkv, "sdpa_backward d_qkv",
                 exact_sdpa_backward(backward_arguments(shape, t, cpu(), documents.on(cpu()))));
  }
};

TEST_F(SdpaParity, ForwardAndBackward) {
  for (const SdpaShape& shape : {SdpaShape{1, 2, 2, 1, 64},
                                 {2, 17, 4, 2, 32},
                                 {1, 64, 4, 4, 128},
                                 {3, 100, 6, 2, 64},
                                 {2, 127, 2, 1, 128},
                                 {2, 128, 8, 2, 32},
                                 {2, 129, 4, 1, 64},
                                 {1, 192, 4, 2, 128},
                                 {2, 256, 8, 8, 64},
                                 {1, 257, 3, 3, 32},
                                 {2, 384, 8, 2, 128},
                                 {1, 1021, 4, 2, 128},
                                 {2, 640, 6, 6, 64},
                                 {16, 64, 16, 4, 64},
                                 {16, 256, 16, 4, 64},
                                 {3, 128, 32, 8, 128}}) {
    Tensors t(shape);
    fill(t.qkv);
    compare(shape, t);
  }
}

TEST_F(SdpaParity, ForwardOfOneToken) {
  const SdpaShape shape{3, 1, 4, 2, 64};
  Tensors t(shape);
  reserve_for(shape);
  fill(t.qkv);
  compare_forward(shape, t, {});
}

// If every score is near -120, every log-sum-exp is very negative. Together with a partial last tile of keys this has
// given NaN.
TEST_F(SdpaParity, VeryNegativeScores) {
  for (const int64_t seq_len : {64, 96, 192, 256, 320, 704}) {
    for (const int64_t head_dim : {32, 64, 128}) {
      const SdpaShape shape{1, seq_len, 2, 1, head_dim};
      Tensors t(shape);
      fill(t.qkv, 0.1f);
      make_scores_very_negative(shape, t);
      // d_q is a difference of large terms, so its relative error is larger.
      compare(shape, t, 5e-2);
    }
  }
}

TEST_F(SdpaParity, DeterministicBackward) {
  gpu().set_deterministic(true);
  for (const SdpaShape& shape : {SdpaShape{2, 512, 8, 2, 128}, {1, 333, 4, 2, 64}}) {
    Tensors t(shape);
    fill(t.qkv);
    compare(shape, t);
    const auto once = gpu_bytes(t.d_qkv);
    for (int i = 0; i < 5; ++i) {
      poison(t.d_qkv);
      backward(shape, t, gpu());
      EXPECT_EQ(gpu_bytes(t.d_qkv), once);
    }
  }
}

// Many blocks of keys add to the gradient of each query in a fixed order, while concurrent copies keep the memory busy.
TEST_F(SdpaParity, DeterministicBackwardOfManyTiles) {
  gpu().set_deterministic(true);
  for (const SdpaShape& shape : {SdpaShape{2, 4096, 16, 8, 128}, {2, 4096, 16, 4, 64}}) {
    Tensors t(shape);
    fill(t.qkv);
    fill(t.d_out);
    reserve(0, sdpa_workspace_bytes(shape, DType::kBFloat16, gpu()));
    sdpa_forward({.shape = shape, .out = t.out.gpu(), .lse = t.lse.gpu(), .qkv = t.qkv.gpu(), .documents = {}}, gpu());
    backward(shape, t, gpu());
    const auto once = gpu_bytes(t.d_qkv);
    Stream beside = Stream::beside(gpu());
    const Buffer copy = Buffer::device(Device::kCuda, t.qkv.gpu().bytes());
    for (int i = 0; i < 100; ++i) {
      beside.copy(copy.data(), t.qkv.gpu().raw(), copy.bytes());
      backward(shape, t, gpu());
      ASSERT_EQ(gpu_bytes(t.d_qkv), once) << "heads of " << shape.head_dim << ", run " << i;
    }
    beside.synchronize();
  }
}

// Documents of one token, of odd lengths, of the whole sequence, many short ones, and a mixture. The sequences are
// shorter and longer than a batch of documents, and some lengths are not powers of two.
TEST_F(SdpaParity, WithinDocuments) {
  for (const SdpaShape& shape : {SdpaShape{1, 1, 2, 1, 64},
                                 {2, 17, 4, 2, 32},
                                 {3, 100, 6, 2, 64},
                                 {2, 256, 8, 2, 128},
                                 {1, 1021, 4, 2, 128},
                                 {2, 640, 6, 6, 64},
                                 {5, 384, 4, 1, 64}}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1}, {shape.seq_len}, {3, 1, 7}, {129, 64, 65, 1, 31}, {5, 300, 2, 128, 127}}) {
      Tensors t(shape);
      fill(t.qkv);
      compare(shape, t, 1e-2, {shape, lengths});
    }
  }
}

// The documents take several launches and several windows (kernels/flash_attention/flash_documents.h), and several
// padded batches (kernels/attention/padded_documents.h), the last of which are not full.
TEST_F(SdpaParity, ManyDocumentsInLongSequences) {
  for (const SdpaShape& shape : {SdpaShape{4, 5003, 2, 1, 64}, {2, 2503, 6, 2, 128}, {3, 2503, 2, 1, 32}}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1200, 17, 2400, 300, 90, 2, 650, 64, 1}, {33, 1, 61}, {shape.seq_len}}) {
      Tensors t(shape);
      fill(t.qkv);
      compare(shape, t, 1e-2, {shape, lengths});
    }
  }
}

TEST_F(SdpaParity, ThousandsOfDocumentsOfOneToken) {
  for (const int64_t head_dim : {64, 128}) {
    const SdpaShape shape{2, 2503, 4, 2, head_dim};
    Tensors t(shape);
    fill(t.qkv);
    compare(shape, t, 1e-2, {shape, {1}});
  }
}

TEST_F(SdpaParity, VeryNegativeScoresWithinDocuments) {
  for (const int64_t head_dim : {32, 64, 128}) {
    const SdpaShape shape{1, 704, 2, 1, head_dim};
    Tensors t(shape);
    fill(t.qkv, 0.1f);
    make_scores_very_negative(shape, t);
    compare(shape, t, 5e-2, {shape, {64, 192, 100, 300, 48}});
  }
}

TEST_F(SdpaParity, DeterministicBackwardWithinDocuments) {
  gpu().set_deterministic(true);
  for (const SdpaShape& shape : {SdpaShape{2, 512, 8, 2, 128}, {3, 1021, 6, 2, 64}, {2, 512, 4, 4, 64}}) {
    Tensors t(shape);
    fill(t.qkv);
    const TwinDocuments documents(shape, {200, 31, 1, 90, 7, 700});
    compare(shape, t, 1e-2, documents);
    const auto once = gpu_bytes(t.d_qkv);
    for (int i = 0; i < 5; ++i) {
      poison(t.d_qkv);
      backward(shape, t, gpu(), documents.on(gpu()));
      EXPECT_EQ(gpu_bytes(t.d_qkv), once);
    }
  }
}

// Blocks of many documents and heads wait for each other, while concurrent copies keep the memory busy.
TEST_F(SdpaParity, DeterministicBackwardOfManyTilesWithinDocuments) {
  gpu().set_deterministic(true);
  for (const SdpaShape& shape : {SdpaShape{2, 8192, 16, 8, 128}, {2, 8192, 16, 4, 64}}) {
    Tensors t(shape);
    fill(t.qkv);
    fill(t.d_out);
    const TwinDocuments documents(shape, {700, 3000, 128, 1, 4500, 90, 1300});
    upload(*documents.twin());
    reserve(0, sdpa_workspace_bytes(shape, DType::kBFloat16, gpu(), true));
    sdpa_forward(
        {.shape = shape, .out = t.out.gpu(), .lse = t.lse.gpu(), .qkv = t.qkv.gpu(), .documents = documents.on(gpu())},
        gpu());
    backward(shape, t, gpu(), documents.on(gpu()));
    const auto once = gpu_bytes(t.d_qkv);
    Stream beside = Stream::beside(gpu());
    const Buffer copy = Buffer::device(Device::kCuda, t.qkv.gpu().bytes());
    for (int i = 0; i < 50; ++i) {
      beside.copy(copy.data(), t.qkv.gpu().raw(), copy.bytes());
      backward(shape, t, gpu(), documents.on(gpu()));
      ASSERT_EQ(gpu_bytes(t.d_qkv), once) << "heads of " << shape.head_dim << ", run " << i;
    }
    beside.synchronize();
  }
}

TEST_F(SdpaParity, RefusesWhatItHasNoKernelFor) {
  const SdpaShape shape{1, 16, 2, 1, 48};
  EXPECT_THROW(static_cast<void>(sdpa_workspace_bytes(shape, DType::kBFloat16, gpu())), InputError);
  const SdpaShape good{1, 16, 2, 1, 64};
  EXPECT_THROW(static_cast<void>(sdpa_workspace_bytes(good, DType::kFloat32, gpu())), InputError);
}

}  // namespace
}  // namespace octavo::parity_libraries_test
