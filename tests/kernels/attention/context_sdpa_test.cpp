// Attention of ranks that share sequences. The tests compute the ranks of a group one after the other and compare their
// joint results with attention over whole sequences on one rank, which sdpa_test.cpp compares with its definition.
#include "kernels/attention/sdpa.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/math/sum_terms.h"
#include "tests/kernels/attention/exact_sdpa.h"
#include "tests/kernels/law.h"

namespace octavo::context_sdpa_test {
namespace {

struct Case {
  SdpaShape shape;  // Shape of the whole sequences.
  int64_t ranks;
};

// The cases have chunks of one token, of odd and of prime lengths, and of more than one block of rows, and groups of 1,
// of 2 and of all query heads per key/value head.
constexpr Case kCases[] = {{{1, 4, 1, 1, 2}, 2},      {{2, 18, 3, 1, 5}, 3}, {{1, 56, 2, 2, 16}, 4},
                           {{1, 4 * 67, 4, 2, 8}, 2}, {{3, 30, 6, 3, 6}, 3}, {{2, 10 * 7, 2, 1, 4}, 5}};

// The lengths of documents, which repeat. The last document of a sequence ends with the sequence.
using Lengths = std::vector<int64_t>;

class ContextSdpaTest : public LawTest {
 protected:
  // Each gradient is a sum over two chunks and over ranks of terms that are rounded to bfloat16. GPUs round
  // probabilities and their gradients too.
  double tolerance() const { return on_gpu() ? 1e-2 : OpTest::tolerance(); }
  double gradient_tolerance() const { return dtype() == DType::kBFloat16 ? 0x1p-6 : 2e-6; }

  void check(const Case& c, const Lengths& lengths);
};
INSTANTIATE_TEST_SUITE_P(Cpu, ContextSdpaTest, ::testing::Values(DType::kFloat32, DType::kBFloat16), name_of_place);
INSTANTIATE_GPU(ContextSdpaTest, DType::kBFloat16);

// Returns, for each token, the position at which its document begins.
std::vector<int32_t> starts_of(const SdpaShape& s, const Lengths& lengths) {
  std::vector<int32_t> start;
  for (int64_t row = 0, next = 0; row < s.batch && !lengths.empty(); ++row) {
    for (int64_t t = 0, end = 0, begin = 0; t < s.seq_len; ++t) {
      if (t == end) begin = t, end += lengths[static_cast<size_t>(next++) % lengths.size()];
      start.push_back(static_cast<int32_t>(begin));
    }
  }
  return start;
}

// The part of the sequences that one rank has, and the mapping of its rows to those of whole sequences.
struct Share {
  Share(const Case& c, int64_t rank) : of(c), context{.rank = rank, .size = c.ranks} {}

  SdpaShape shape() const {
    SdpaShape share = of.shape;
    share.seq_len = context.share(of.shape.seq_len);
    share.context = context;
    return share;
  }
  int64_t tokens() const { return of.shape.batch * context.share(of.shape.seq_len); }
  // Returns the row of the rank's token t in the tensors of whole sequences.
  int64_t row(int64_t t) const {
    const int64_t share = context.share(of.shape.seq_len);
    return t / share * of.shape.seq_len + context.position(t % share, of.shape.seq_len);
  }
  Array take(const Array& whole, int64_t begin, int64_t width) const {
    const int64_t whole_width = static_cast<const Tensor&>(whole).dim(1);
    Array mine(whole.dtype(), {tokens(), width});
    for (int64_t t = 0; t < tokens(); ++t) {
      for (int64_t i = 0; i < width; ++i) mine.set(t * width + i, whole.at(row(t) * whole_width + begin + i));
    }
    return mine;
  }
  std::vector<int32_t> take(const std::vector<int32_t>& whole) const {
    std::vector<int32_t> mine;
    for (int64_t t = 0; t < tokens(); ++t) mine.push_back(whole[static_cast<size_t>(row(t))]);
    return mine;
  }
  // Adds the values of this rank to elements [row(t), begin + i) of the tensor of whole sequences.
  void add(Values& whole, int64_t whole_width, int64_t begin, const Array& mine, int64_t mine_width,
           int64_t width) const {
    for (int64_t t = 0; t < tokens(); ++t) {
      for (int64_t i = 0; i < width; ++i) {
        whole[static_cast<size_t>(row(t) * whole_width + begin + i)] += mine.at(t * mine_width + i);
      }
    }
  }
  // Returns the row of the rank's lse that belongs to its token t and this head.
  int64_t lse_row(int64_t t, int64_t head) const {
    const int64_t share = context.share(of.shape.seq_len);
    const int64_t chunk = share / context.chunks();
    const int64_t token = t % share;
    const int64_t sequence = token / chunk * of.shape.batch + t / share;
    return (sequence * of.shape.num_heads + head) * chunk + token % chunk;
  }

  const Case& of;
  ContextRank context;
};

void ContextSdpaTest::check(const Case& c, const Lengths& lengths) {
  const SdpaShape& s = c.shape;
  SCOPED_TRACE(fmt::format("{} ranks, {} x {} tokens, heads {}/{} of {}, documents of {}", c.ranks, s.batch, s.seq_len,
                           s.num_heads, s.num_kv_heads, s.head_dim, fmt::join(lengths, ", ")));
  const int64_t rows = s.batch * s.seq_len;
  const int64_t kv_width = 2 * s.num_kv_heads * s.head_dim;
  // One rank on the CPU.
  Stream cpu = Stream::cpu();
  std::vector<unsigned char> workspace(static_cast<size_t>(sdpa_workspace_bytes(s, dtype(), cpu)));
  cpu.set_workspace(Tensor(workspace.data(), DType::kUInt8, {std::ssize(workspace)}));
  const Array qkv = OpTest::random({rows, s.qkv_width()}), d_out = OpTest::random({rows, s.out_width()});
  const Array out(dtype(), {rows, s.out_width()}), lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
  const Array d_qkv(dtype(), {rows, s.qkv_width()});
  const std::vector<int32_t> starts = starts_of(s, lengths);
  std::vector<Document> list;
  append_documents(starts, s.seq_len, list);
  const Documents documents{.list = list, .device = {}};
  sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = documents}, cpu);
  sdpa_backward(
      {.shape = s, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = documents}, cpu);

  Array host_kv(dtype(), {rows, kv_width});
  for (int64_t i = 0; i < host_kv.size(); ++i) {
    host_kv.set(i, qkv.at(i / kv_width * s.qkv_width() + s.out_width() + i % kv_width));
  }
  const Array kv = on_device(host_kv);
  Values all_out(static_cast<size_t>(rows * s.out_width()));
  Values all_lse(static_cast<size_t>(lse.size()));
  Values all_d_qkv(static_cast<size_t>(d_qkv.size()));
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const Share share(c, rank);
    const SdpaShape shape = share.shape();
    std::vector<Document> mine;
    append_documents(lengths.empty() ? starts : share.take(starts), shape.seq_len, mine, share.context);
    Array numbers(DType::kInt32, {std::ssize(mine), kNumbersOfDocument});
    write_documents(mine, static_cast<const Tensor&>(numbers).data<int32_t>());
    const Array on_this_device = on_device(numbers);
    const Documents my_documents{.list = mine, .device = lengths.empty() ? Tensor() : Tensor(on_this_device)};
    const Array my_qkv = on_device(share.take(qkv, 0, s.qkv_width()));
    const Array my_d_out = on_device(share.take(d_out, 0, s.out_width()));
    const Array my_out = array({share.tokens(), s.out_width()}), d_kv = array({rows, kv_width});
    const Array my_lse = array(DType::kFloat32, {2 * s.batch, s.num_heads, shape.chunk_length()});
    const Array my_d_qkv = filled(dtype(), {share.tokens(), s.qkv_width()}, 7.0);
    reserve(sdpa_workspace_bytes(shape, dtype(), stream(), !lengths.empty()));
    sdpa_forward({.shape = shape, .out = my_out, .lse = my_lse, .qkv = my_qkv, .kv = kv, .documents = my_documents},
                 stream());
    const SdpaBackward backward{.shape = shape,
                                .d_qkv = my_d_qkv,
                                .d_kv = d_kv,
                                .d_out = my_d_out,
                                .out = my_out,
                                .lse = my_lse,
                                .qkv = my_qkv,
                                .kv = kv,
                                .documents = my_documents};
    sdpa_backward(backward, stream());
    share.add(all_out, s.out_width(), 0, my_out, s.out_width(), s.out_width());
    share.add(all_d_qkv, s.qkv_width(), 0, my_d_qkv, s.qkv_width(), s.out_width());
    for (int64_t t = 0; t < share.tokens(); ++t) {
      EXPECT_EQ(my_d_qkv.at(t * s.qkv_width() + s.out_width()), 7.0) << "the columns of k are unchanged";
      for (int64_t head = 0; head < s.num_heads; ++head) {
        const int64_t row = share.row(t);
        const int64_t at = (row / s.seq_len * s.num_heads + head) * s.seq_len + row % s.seq_len;
        all_lse[static_cast<size_t>(at)] = my_lse.at(share.lse_row(t, head));
      }
    }
    for (int64_t i = 0; i < d_kv.size(); ++i) {
      all_d_qkv[static_cast<size_t>(i / kv_width * s.qkv_width() + s.out_width() + i % kv_width)] += d_kv.at(i);
    }
    if (!stream_.deterministic()) continue;
    const Array once_q = my_d_qkv, once_kv = d_kv;
    for (int i = 0; i < 3; ++i) {
      sdpa_backward(backward, stream());
      EXPECT_TRUE(my_d_qkv.bits() == once_q.bits() && d_kv.bits() == once_kv.bits()) << "not deterministic";
    }
  }
  expect_close(out, all_out, tolerance(), "out");
  expect_close(lse, all_lse, on_gpu() ? 1e-3 : 1e-6, "lse");
  expect_close(d_qkv, all_d_qkv, gradient_tolerance(), "d_qkv");
}

TEST_P(ContextSdpaTest, RanksTogetherEqualOneRank) {
  if (on_gpu()) return;
  for (const Case& c : kCases) {
    for (const Lengths& lengths : {Lengths{}, {1}, {5}, {23}, {7, 1, 20}}) check(c, lengths);
  }
}

// The documents begin at the first token of a chunk, within it, one chunk or two chunks earlier. They have one token,
// many per chunk or one per sequence. One case has chunks of odd length. If a rank has runs of one document in both of
// its chunks, the gradient of a key of that document is the sum of two terms. GPUs attend within documents with heads
// of 64 and 128.
TEST_P(ContextSdpaTest, OfSeveralTiles) {
  if (!on_gpu()) return;
  for (const bool deterministic : {false, true}) {
    stream_.set_deterministic(deterministic);
    for (const Case& c : {Case{{1, 512, 2, 2, 64}, 2},
                          {{2, 768, 4, 1, 128}, 3},
                          {{1, 1024, 8, 2, 32}, 4},
                          {{1, 512, 4, 2, 80}, 2},
                          {{3, 768, 4, 4, 96}, 3},
                          {{1, 512, 4, 1, 256}, 2},
                          {{2, 4 * 101, 4, 4, 64}, 2}}) {
      for (const Lengths& lengths : {Lengths{},
                                     {200, 31, 1, 90},
                                     {128},
                                     {1},
                                     {300, 5},
                                     {c.shape.seq_len},
                                     {c.shape.seq_len - 1},
                                     {130, 600},
                                     {1000, 90, 31, 1}}) {
        if (lengths.empty() ? c.shape.seq_len == 404 : !flash_has_kernels_for(c.shape.head_dim)) continue;
        check(c, lengths);
      }
    }
  }
}

// The documents of some chunks take several launches (kernels/flash_attention/flash_documents.h).
TEST_P(ContextSdpaTest, LongChunks) {
  if (!on_gpu()) return;
  for (const Case& c : {Case{{1, 1536, 4, 2, 128}, 2}, {{2, 2048, 8, 2, 128}, 2}}) check(c, {});
  for (const Lengths& lengths : {Lengths{1100, 7, 300}, {3000}, {40, 900, 2500}, {11, 5, 23}}) {
    for (const Case& c : {Case{{2, 4096, 8, 2, 128}, 2}, {{1, 6 * 401, 6, 2, 64}, 3}}) check(c, lengths);
  }
}

class ContextSdpaSums : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, ContextSdpaSums, ::testing::Values(DType::kBFloat16), name_of_place);

// Every rank computes a bfloat16 term of the gradients of keys and values. Summed in float32, the terms of 16 ranks are
// about as exact as those of two. Summed rank by rank in bfloat16, as a ring of NCCL does, they are not.
TEST_P(ContextSdpaSums, StayExactWithManyRanks) {
  const SdpaShape s{1, 256, 4, 2, 16};
  const int64_t kv_width = 2 * s.num_kv_heads * s.head_dim;
  const Array qkv = random({s.seq_len, s.qkv_width()});
  const Array d_out = random({s.seq_len, s.out_width()});
  const Array out(dtype(), {s.seq_len, s.out_width()});
  const Array lse(DType::kFloat32, {1, s.num_heads, s.seq_len});
  reserve(sdpa_workspace_bytes(s, dtype(), stream_));
  sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = {}}, stream_);
  const Exact exact = exact_sdpa_backward(
      {.shape = s, .d_qkv = {}, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = {}});
  Array kv(dtype(), {s.seq_len, kv_width});
  Values expected;
  for (int64_t i = 0; i < kv.size(); ++i) {
    const int64_t at = i / kv_width * s.qkv_width() + s.out_width() + i % kv_width;
    kv.set(i, qkv.at(at));
    expected.push_back(exact.values[static_cast<size_t>(at)]);
  }
  double of_two_ranks = 0;
  for (const int64_t ranks : {2, 8, 16}) {
    const Case c{s, ranks};
    Array terms(dtype(), {ranks * kv.size()});
    Array hop_by_hop(dtype(), {kv.size()});
    hop_by_hop.fill(0);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Share share(c, rank);
      const SdpaShape shape = share.shape();
      const Array my_qkv = share.take(qkv, 0, s.qkv_width());
      const Array my_out(dtype(), {share.tokens(), s.out_width()});
      const Array my_lse(DType::kFloat32, {2, s.num_heads, shape.chunk_length()});
      const Array my_d_qkv(dtype(), {share.tokens(), s.qkv_width()});
      const Array d_kv(dtype(), {s.seq_len, kv_width});
      reserve(sdpa_workspace_bytes(shape, dtype(), stream_));
      sdpa_forward({.shape = shape, .out = my_out, .lse = my_lse, .qkv = my_qkv, .kv = kv, .documents = {}}, stream_);
      sdpa_backward({.shape = shape,
                     .d_qkv = my_d_qkv,
                     .d_kv = d_kv,
                     .d_out = share.take(d_out, 0, s.out_width()),
                     .out = my_out,
                     .lse = my_lse,
                     .qkv = my_qkv,
                     .kv = kv,
                     .documents = {}},
                    stream_);
      for (int64_t i = 0; i < kv.size(); ++i) {
        terms.set(rank * kv.size() + i, d_kv.at(i));
        hop_by_hop.set(i, hop_by_hop.at(i) + d_kv.at(i));
      }
    }
    const Array sum(dtype(), {kv.size()});
    sum_terms({.out = sum, .terms = terms}, stream_);
    const double error = relative_error(sum.values(), expected);
    const double error_by_hops = relative_error(hop_by_hop.values(), expected);
    if (ranks == 2) of_two_ranks = error;
    EXPECT_LT(error, 0x1p-8) << ranks;
    EXPECT_LT(error, 1.5 * of_two_ranks) << ranks;
    if (ranks == 16) {
      EXPECT_GT(error_by_hops, 2 * error);
    }
  }
}

// Each rank's two chunks together have the same number of query-key pairs, so the ranks do equal work.
TEST(ContextSdpa, RanksHaveEqualWork) {
  for (int64_t ranks = 1; ranks <= 7; ++ranks) {
    const int64_t seq_len = 2 * ranks * 3;
    int64_t all = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const ContextRank context{.rank = rank, .size = ranks};
      int64_t seen = 0;
      for (int64_t t = 0; t < context.share(seq_len); ++t) seen += context.position(t, seq_len) + 1;
      EXPECT_EQ(seen, seq_len * (seq_len + 1) / 2 / ranks) << rank << " of " << ranks;
      all += seen;
    }
    EXPECT_EQ(all, seq_len * (seq_len + 1) / 2);
  }
}

TEST_P(ContextSdpaTest, WrongShapesThrow) {
  const SdpaShape shape{1, 4, 2, 1, 2, {.rank = 0, .size = 2}};
  if (on_gpu()) return;
  const Array qkv = random({4, 8}), kv = random({8, 4}), out = array({4, 4}), lse = array(DType::kFloat32, {2, 2, 2});
  reserve(sdpa_workspace_bytes(shape, dtype(), stream()));
  SdpaForward args{.shape = shape, .out = out, .lse = lse, .qkv = qkv, .kv = qkv, .documents = {}};
  expect_error([&] { sdpa_forward(args, stream()); }, "expected " + std::string(dtype_name(dtype())) + " [8, 4]");
  args.kv = kv;
  sdpa_forward(args, stream());
  constexpr Document kTooFew[] = {{0, 2}};
  args.documents.list = kTooFew;
  expect_error([&] { sdpa_forward(args, stream()); }, "documents have 2 tokens, expected all 4");
  args.documents = {};
  args.shape.seq_len = 3;
  expect_error([&] { sdpa_forward(args, stream()); }, "3 tokens in 2 chunks");
}

}  // namespace
}  // namespace octavo::context_sdpa_test
