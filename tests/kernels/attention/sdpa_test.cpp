#include "kernels/attention/sdpa.h"

#include "kernels/flash_attention/flash_documents.h"
#include "tests/kernels/attention/exact_sdpa.h"
#include "tests/kernels/law.h"

namespace octavo::sdpa_test {
namespace {

// The lengths of documents, which repeat. The last document of a sequence ends with the sequence.
using Lengths = std::vector<int64_t>;

class SdpaTest : public LawTest {
 protected:
  // The tensors of attention over whole sequences, or within documents if there are lengths.
  struct Case {
    SdpaShape s;
    Array qkv, out, lse, d_out, d_qkv;
    std::vector<Document> list;
    std::optional<Array> numbers;  // `list` on the device

    Documents documents() const {
      return {.list = list, .device = numbers ? static_cast<const Tensor&>(*numbers) : Tensor()};
    }
    SdpaForward forward() const { return {.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = documents()}; }
    SdpaBackward backward() const {
      return {.shape = s, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = documents()};
    }
    // Kernels within documents may order the log-sum-exp by windows (kernels/flash_attention/flash_documents.h).
    bool has_windows() const { return numbers.has_value() && flash_attends(s); }
  };
  Case make_case(const SdpaShape& s, const Lengths& lengths = {}, double deviation = 1) {
    Case c{s,
           random({s.batch * s.seq_len, s.qkv_width()}, deviation),
           array({s.batch * s.seq_len, s.out_width()}),
           array(DType::kFloat32, {s.batch, s.num_heads, s.seq_len}),
           random({s.batch * s.seq_len, s.out_width()}),
           array({s.batch * s.seq_len, s.qkv_width()}),
           {},
           {}};
    if (lengths.empty()) {
      reserve_for(c);
      return c;
    }
    std::vector<int32_t> start;
    for (int64_t row = 0, next = 0; row < s.batch; ++row) {
      for (int64_t t = 0, end = 0, begin = 0; t < s.seq_len; ++t) {
        if (t == end) begin = t, end += lengths[static_cast<size_t>(next++) % lengths.size()];
        start.push_back(static_cast<int32_t>(begin));
      }
    }
    append_documents(start, s.seq_len, c.list);
    Array numbers(DType::kInt32, {std::ssize(c.list), kNumbersOfDocument});
    write_documents(c.list, static_cast<const Tensor&>(numbers).data<int32_t>());
    c.numbers = on_device(numbers);
    reserve_for(c);
    return c;
  }
  // The workspace of the CPU depends on the number of threads.
  void reserve_for(const Case& c) { reserve(sdpa_workspace_bytes(c.s, dtype(), stream(), c.numbers.has_value())); }

  // Returns the log-sum-exp reordered from its layout within documents on a GPU to that of sequences, or back.
  Array reordered(const Case& c, const Array& lse, bool to_sequences) {
    if (!on_gpu() || !c.has_windows()) return lse;
    Array to = lse;
    const int64_t rows = window_tokens(c.s) / c.s.seq_len;
    for (int64_t i = 0; i < lse.size(); ++i) {
      const int64_t sequence = i / (c.s.num_heads * c.s.seq_len);
      const int64_t head = i / c.s.seq_len % c.s.num_heads;
      const int64_t first = sequence / rows * rows;
      const int64_t in_window = std::min(rows, c.s.batch - first);
      const int64_t j = (first * c.s.num_heads + head * in_window + sequence - first) * c.s.seq_len + i % c.s.seq_len;
      to.set(to_sequences ? i : j, lse.at(to_sequences ? j : i));
    }
    return to;
  }
  SdpaArithmetic arithmetic() const { return on_gpu() ? SdpaArithmetic::kTensorCores : SdpaArithmetic::kCpu; }

  // `fraction` is the error of a single element that the bounds must detect (expect_exact).
  ExactSdpa check_forward(const Case& c, double fraction = 0x1p-6) {
    const ExactSdpa exact = exact_sdpa_forward(c.s, c.qkv.host(), c.documents(), arithmetic());
    sdpa_forward(c.forward(), stream());
    expect_exact(c.out, "sdpa_forward out", exact.out, fraction);
    expect_exact(reordered(c, c.lse, true), "sdpa_forward lse", exact.lse);
    return exact;
  }
  // Backward reads the exact results of forward, so that errors do not accumulate.
  void check(Case c, double fraction = 0x1p-5) {
    SCOPED_TRACE(fmt::format("batch {}, seq_len {}, heads {}/{} of {}, {} documents", c.s.batch, c.s.seq_len,
                             c.s.num_heads, c.s.num_kv_heads, c.s.head_dim, c.list.size()));
    const ExactSdpa forward = check_forward(c, fraction);
    for (int64_t i = 0; i < c.out.size(); ++i) c.out.set(i, forward.out.values[static_cast<size_t>(i)]);
    Array lse = c.lse;
    for (int64_t i = 0; i < lse.size(); ++i) lse.set(i, forward.lse.values[static_cast<size_t>(i)]);
    c.lse = reordered(c, lse, false);
    const Exact exact = exact_sdpa_backward({.shape = c.s,
                                             .d_qkv = {},
                                             .d_out = c.d_out.host(),
                                             .out = c.out.host(),
                                             .lse = lse.host(),
                                             .qkv = c.qkv.host(),
                                             .documents = c.documents()},
                                            arithmetic());
    sdpa_backward(c.backward(), stream());
    expect_exact(c.d_qkv, "sdpa_backward d_qkv", exact, fraction);
  }

  // Sets the scores of two query heads that share a key/value head to about `score`.
  static void set_scores(Case& c, double score) {
    for (int64_t token = 0; token < c.s.batch * c.s.seq_len; ++token) {
      const int64_t row = token * c.s.qkv_width();
      for (const int64_t head : {0, 1}) c.qkv.set(row + head * c.s.head_dim, 1);
      c.qkv.set(row + 2 * c.s.head_dim, score * std::sqrt(static_cast<double>(c.s.head_dim)));
    }
  }

  void expect_reproducible_backward(const Case& c) {
    reserve_for(c);
    sdpa_forward(c.forward(), stream());
    expect_reproducible([&] {
      Case again = c;
      reserve_for(c);
      poison(again.d_qkv);
      sdpa_backward(again.backward(), stream());
      return again.d_qkv;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, SdpaTest, ::testing::Values(DType::kFloat32, DType::kBFloat16), name_of_place);
INSTANTIATE_GPU(SdpaTest, DType::kBFloat16);

// The fields are {batch, seq_len, num_heads, num_kv_heads, head_dim}. The shapes cover one token, odd and prime sizes,
// groups of 1, of 2 and of all query heads per key/value head, and lengths of one block, several blocks and a partial
// block of the implementations.
TEST_P(SdpaTest, ForwardAndBackward) {
  const std::vector<SdpaShape> of_cpu = {{1, 1, 1, 1, 2},   {2, 7, 3, 1, 5},   {1, 64, 2, 2, 16},
                                         {1, 67, 4, 2, 32}, {2, 131, 2, 1, 8}, {1, 193, 6, 3, 6}};
  const std::vector<SdpaShape> of_gpu = {
      {1, 2, 2, 1, 64},    {2, 17, 4, 2, 32},   {1, 64, 4, 4, 128},   {3, 100, 6, 2, 64},
      {2, 127, 2, 1, 128}, {2, 128, 8, 2, 32},  {2, 129, 4, 1, 64},   {1, 192, 4, 2, 128},
      {2, 256, 8, 8, 64},  {1, 257, 3, 3, 32},  {2, 384, 8, 2, 128},  {1, 1021, 4, 2, 128},
      {2, 640, 6, 6, 64},  {16, 64, 16, 4, 64}, {16, 256, 16, 4, 64}, {3, 128, 32, 8, 128}};
  for (const SdpaShape& shape : on_gpu() ? of_gpu : of_cpu) check(make_case(shape));
  if (on_gpu()) check_forward(make_case({3, 1, 4, 2, 64}));
}

// Documents of one token, of odd lengths, of the whole sequence, many short ones, and a mixture. The sequences are
// shorter and longer than a batch of documents, and some lengths are not powers of two.
TEST_P(SdpaTest, WithinDocuments) {
  const std::vector<SdpaShape> of_cpu = {{2, 7, 3, 1, 5}, {1, 67, 4, 2, 32}, {2, 131, 2, 1, 8}, {1, 193, 6, 3, 6}};
  const std::vector<SdpaShape> of_gpu = {{1, 1, 2, 1, 64},    {2, 17, 4, 4, 128},   {3, 100, 6, 2, 64},
                                         {2, 256, 8, 2, 128}, {1, 1021, 4, 2, 128}, {2, 640, 6, 6, 64},
                                         {5, 384, 4, 1, 64}};
  for (const SdpaShape& shape : on_gpu() ? of_gpu : of_cpu) {
    for (const Lengths& lengths :
         {Lengths{1}, {shape.seq_len}, {3, 1, 7}, {64, 5, 70}, {129, 64, 65, 1, 31}, {5, 300, 2, 128, 127}}) {
      check(make_case(shape, lengths));
    }
  }
}

// If every score is near -120, every log-sum-exp is very negative. Together with a partial last tile of keys this has
// given NaN. The exponential of a score of 512 would overflow.
TEST_P(SdpaTest, ExtremeScores) {
  constexpr double kLargeTerms = 100;  // The gradients are differences of large terms.
  for (const int64_t seq_len : on_gpu() ? Lengths{64, 96, 192, 256, 320, 704} : Lengths{9, 96}) {
    for (const int64_t head_dim : kSdpaHeadSizes) {
      for (const Lengths& lengths : {Lengths{}, {64, 192, 100, 300, 48}}) {
        if (!lengths.empty() && (seq_len < 96 || !flash_has_kernels_for(head_dim))) continue;
        Case c = make_case({1, seq_len, 2, 1, head_dim}, lengths, 0.1);
        set_scores(c, -120);
        check(c, kLargeTerms);
        // The law's bound on a score does not grow with the head, and the CPU adds 256 terms to one of 8192.
        if (on_gpu() || head_dim > 128) continue;
        set_scores(c, 512);
        check(c, kLargeTerms);
      }
    }
  }
}

TEST(SdpaFormula, Gradient) {
  const SdpaShape s{2, 7, 4, 2, 6};
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  Array qkv(DType::kFloat32, {14, s.qkv_width()}), d_out(DType::kFloat32, {14, s.out_width()}), out = d_out;
  Array lse(DType::kFloat32, {2, 4, 7});
  for (Array* x : {&qkv, &d_out}) {
    for (int64_t i = 0; i < x->size(); ++i) x->set(i, normal(generator));
  }
  for (const bool masked : {false, true}) {
    std::vector<Document> list;
    if (masked) append_documents(std::vector<int32_t>{0, 0, 0, 3, 3, 3, 3, 0, 1, 1, 1, 1, 1, 6}, 7, list);
    const Documents documents{.list = list, .device = {}};
    const auto forward = [&] { return exact_sdpa_forward(s, qkv.host(), documents); };
    const ExactSdpa exact = forward();
    for (int64_t i = 0; i < out.size(); ++i) out.set(i, exact.out.values[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < lse.size(); ++i) lse.set(i, exact.lse.values[static_cast<size_t>(i)]);
    const Exact d_qkv = exact_sdpa_backward({.shape = s,
                                             .d_qkv = {},
                                             .d_out = d_out.host(),
                                             .out = out.host(),
                                             .lse = lse.host(),
                                             .qkv = qkv.host(),
                                             .documents = documents});
    expect_gradient(
        d_qkv, qkv, [&] { return dot(d_out, forward().out.values); }, masked ? "d_qkv, masked" : "d_qkv");
  }
}

TEST_P(SdpaTest, IsReproducible) {
  stream_.set_deterministic(true);
  const std::vector<SdpaShape> of_gpu = {{2, 512, 8, 2, 128}, {1, 333, 4, 2, 64}, {3, 1021, 6, 2, 64},
                                         {2, 512, 4, 4, 64},  {2, 512, 4, 4, 80}, {3, 333, 4, 2, 80},
                                         {2, 1021, 6, 2, 96}, {3, 512, 4, 1, 256}};
  for (const SdpaShape& shape : on_gpu() ? of_gpu : std::vector<SdpaShape>{{2, 71, 6, 3, 16}}) {
    for (const Lengths& lengths : {Lengths{}, {200, 31, 1, 90, 7, 700}}) {
      if (on_gpu() && !lengths.empty() && !flash_has_kernels_for(shape.head_dim)) continue;
      const Case c = make_case(shape, lengths);
      expect_reproducible([&] {
        const Case again = c;
        reserve_for(c);
        sdpa_forward(again.forward(), stream());
        return again.out;
      });
      expect_reproducible_backward(c);
    }
  }
}

TEST_P(SdpaTest, WrongArgumentsThrow) {
  if (on_gpu()) {
    EXPECT_THROW(static_cast<void>(sdpa_workspace_bytes({1, 16, 2, 1, 48}, DType::kBFloat16, stream())), InputError);
    EXPECT_THROW(static_cast<void>(sdpa_workspace_bytes({1, 16, 2, 1, 64}, DType::kFloat32, stream())), InputError);
    return;
  }
  const SdpaShape s{1, 3, 4, 2, 2};
  const Case c = make_case(s);
  const auto expect = [&](const SdpaForward& args, const std::string& error) {
    expect_error([&] { sdpa_forward(args, stream()); }, error);
  };
  SdpaForward args = c.forward();
  args.out = c.qkv;
  expect(args, fmt::format("[3, 16], expected {} [3, 8]", dtype_name(dtype())));
  constexpr Document kWhole[] = {{0, 3}}, kTooFew[] = {{0, 2}}, kTooLong[] = {{0, 4}}, kOutOfOrder[] = {{1, 2}, {0, 1}};
  args = c.forward();
  for (const auto& [documents, error] : std::initializer_list<std::pair<std::span<const Document>, const char*>>{
           {kTooFew, "documents have 2 tokens, expected all 3"},
           {kTooLong, "document 0 has 4 tokens from token 0 on and 0 before them"},
           {kOutOfOrder, "document 0 has 2 tokens from token 1"}}) {
    args.documents.list = documents;
    expect(args, error);
  }
  args.documents.list = kWhole;
  sdpa_forward(args, stream());
  args.shape.num_kv_heads = 3;
  expect(args, "4 query heads for 3 kv heads");
  args = c.forward();
  reserve(sdpa_workspace_bytes(s, dtype(), stream()) - 4);
  expect(args, "an op needs a workspace of");
}

TEST(SdpaSupport, GpusHaveSomeHeadSizesInBfloat16) {
  for (const int64_t head_dim : {32, 64, 80, 96, 128, 256})
    sdpa_check_supported(head_dim, DType::kBFloat16, Device::kCuda);
  sdpa_check_supported(6, DType::kFloat32, Device::kCpu);
  for (const int64_t head_dim : {16, 48, 112, 192, 512}) {
    expect_error<InputError>([=] { sdpa_check_supported(head_dim, DType::kBFloat16, Device::kCuda); },
                             "kernels for 32, 64, 80, 96, 128 or 256");
  }
  expect_error<InputError>([] { sdpa_check_supported(64, DType::kFloat32, Device::kCuda); },
                           "precision.compute is float32");
  for (const int64_t head_dim : {32, 80, 96, 256}) {
    expect_error<InputError>([=] { sdpa_check_supported(head_dim, DType::kBFloat16, Device::kCuda, true); },
                             "data.document_mask");
    EXPECT_FALSE(flash_attends({2, 8192, 32, 8, head_dim}));
  }
  sdpa_check_supported(32, DType::kBFloat16, Device::kCpu, true);
}

TEST(SdpaSupport, ErrorWithoutPlanSaysWhatToChange) {
  for (const auto& [other_order, change] : {std::pair{true, "set training.deterministic: false"},
                                            {false, "use heads of 64 or 128, or another version of cuDNN"}}) {
    EXPECT_EQ(sdpa_error_without_plan(256, "attention backward", "why", other_order),
              fmt::format("model.head_dim is 256, but cuDNN {} has no attention backward for such heads on this GPU "
                          "(why); {}",
                          cudnn_version(), change));
  }
}

TEST(SdpaSupport, PlannedScratchGrowsWithTheHeads) {
  for (const bool deterministic : {false, true}) {
    int64_t before = 0;
    for (const int64_t head_dim : {32, 64, 80, 96, 256}) {
      const int64_t bytes = sdpa_planned_workspace_bytes({2, 4096, 16, 8, head_dim}, 4096, deterministic);
      EXPECT_GT(bytes, before) << head_dim;
      before = bytes;
    }
  }
}

// ---- GPUs only

class SdpaOnGpu : public SdpaTest {
 protected:
  // Backward gives equal bits while concurrent copies keep the memory busy.
  void expect_reproducible_beside_copies(const Case& c, int runs) {
    sdpa_forward(c.forward(), stream());
    sdpa_backward(c.backward(), stream());
    const std::vector<unsigned char> once = c.d_qkv.bits();
    Stream beside = Stream::beside(stream_);
    const Array copy = c.qkv;
    static_cast<void>(stream());
    for (int i = 0; i < runs; ++i) {
      beside.copy(copy, c.qkv);
      sdpa_backward(c.backward(), stream());
      ASSERT_TRUE(c.d_qkv.bits() == once) << "heads of " << c.s.head_dim << ", run " << i;
    }
    beside.synchronize();
  }
};
INSTANTIATE_GPU(SdpaOnGpu, DType::kBFloat16);

// Heads that FlashAttention has no kernels for, in both orders of the sums. Sequences are shorter than a tile, a whole
// number of tiles, and longer by a part of a tile.
TEST_P(SdpaOnGpu, HeadsOfCudnn) {
  for (const bool deterministic : {false, true}) {
    stream_.set_deterministic(deterministic);
    for (const int64_t head_dim : kSdpaHeadSizes) {
      if (flash_has_kernels_for(head_dim)) continue;
      SCOPED_TRACE(deterministic ? "deterministic" : "not deterministic");
      for (SdpaShape shape : {SdpaShape{1, 2, 2, 1, 0},
                              {3, 17, 4, 2, 0},
                              {3, 100, 6, 2, 0},
                              {1, 127, 2, 2, 0},
                              {3, 128, 8, 2, 0},
                              {1, 129, 4, 1, 0},
                              {3, 256, 4, 4, 0},
                              {1, 333, 3, 1, 0},
                              {2, 640, 6, 6, 0},
                              {1, 1021, 4, 2, 0},
                              {16, 64, 16, 4, 0}}) {
        shape.head_dim = head_dim;
        check(make_case(shape));
      }
    }
  }
}

// The documents take several launches and several windows (kernels/flash_attention/flash_documents.h), the last of
// which are not full.
TEST_P(SdpaOnGpu, ManyDocumentsInLongSequences) {
  for (const SdpaShape& shape : {SdpaShape{4, 5003, 2, 1, 64}, {2, 2503, 6, 2, 128}, {3, 2503, 2, 2, 64}}) {
    for (const Lengths& lengths : {Lengths{1200, 17, 300, 90, 2, 650, 64, 1}, {33, 1, 61}}) {
      check(make_case(shape, lengths));
    }
  }
  for (const int64_t head_dim : {64, 128}) check(make_case({2, 2503, 4, 2, head_dim}, {1}));
}

// Many blocks of keys add to the gradient of each query in a fixed order. Within documents, blocks of many documents
// and heads wait for each other.
TEST_P(SdpaOnGpu, DeterministicBackwardOfManyTiles) {
  stream_.set_deterministic(true);
  for (const auto& [kv_heads, head_dim] : {std::pair<int64_t, int64_t>{8, 128}, {4, 64}}) {
    expect_reproducible_beside_copies(make_case({2, 4096, 16, kv_heads, head_dim}), 100);
    expect_reproducible_beside_copies(make_case({2, 8192, 16, kv_heads, head_dim}, {700, 3000, 128, 1, 4500, 90, 1300}),
                                      50);
  }
}

}  // namespace
}  // namespace octavo::sdpa_test
