// Attention of ranks that share sequences. The tests compute the ranks of a group one after the other and compare their
// joint results with attention over whole sequences on one rank, which sdpa_test.cpp compares with its definition.
#include "kernels/attention/sdpa.h"
#include "kernels/math/sum_terms.h"
#include "tests/kernels/attention/exact_sdpa.h"
#include "tests/kernels/op_fixture.h"

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

class ContextSdpaTest : public OpTest {
 protected:
  // Each gradient is a sum over two chunks and over ranks of terms that are rounded to bfloat16.
  double gradient_tolerance() const { return dtype() == DType::kBFloat16 ? 0x1p-6 : 2e-6; }
};
INSTANTIATE_COMPUTE_DTYPES(ContextSdpaTest);

// Returns, for each token, the position at which its document begins. Documents have `length` tokens, and every second
// sequence is shifted by one token.
std::vector<int32_t> starts_of(const SdpaShape& s, int64_t length) {
  std::vector<int32_t> start;
  for (int64_t t = 0; t < s.batch * s.seq_len; ++t) {
    const int64_t shift = t / s.seq_len % 2;
    const int64_t i = t % s.seq_len;
    start.push_back(static_cast<int32_t>(std::max<int64_t>((i + shift) / length * length - shift, 0)));
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

TEST_P(ContextSdpaTest, RanksTogetherEqualOneRank) {
  for (const Case& c : kCases) {
    for (const int64_t length : {0, 1, 5, 23}) {
      const SdpaShape& s = c.shape;
      SCOPED_TRACE(fmt::format("{} ranks, {} tokens, documents of {}", c.ranks, s.seq_len, length));
      const int64_t rows = s.batch * s.seq_len;
      const int64_t kv_width = 2 * s.num_kv_heads * s.head_dim;
      const Array qkv = random({rows, s.qkv_width()});
      const Array d_out = random({rows, s.out_width()});
      const Array out(dtype(), {rows, s.out_width()});
      const Array lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
      const Array d_qkv(dtype(), {rows, s.qkv_width()});
      const std::vector<int32_t> starts = length > 0 ? starts_of(s, length) : std::vector<int32_t>();
      std::vector<Document> list;
      append_documents(starts, s.seq_len, list);
      reserve(sdpa_workspace_bytes(s, dtype(), stream_));
      const Documents documents{.list = list, .device = {}};
      sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = documents}, stream_);
      sdpa_backward(
          {.shape = s, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = documents},
          stream_);

      Array kv(dtype(), {rows, kv_width});
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < kv_width; ++i) {
          kv.set(t * kv_width + i, qkv.at(t * s.qkv_width() + s.out_width() + i));
        }
      }
      Values all_out(static_cast<size_t>(rows * s.out_width()));
      Values all_lse(static_cast<size_t>(lse.size()));
      Values all_d_qkv(static_cast<size_t>(d_qkv.size()));
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        const Share share(c, rank);
        const SdpaShape shape = share.shape();
        std::vector<Document> mine;
        append_documents(length > 0 ? share.take(starts) : starts, shape.seq_len, mine, share.context);
        const Array my_qkv = share.take(qkv, 0, s.qkv_width());
        const Array my_d_out = share.take(d_out, 0, s.out_width());
        const Array my_out(dtype(), {share.tokens(), s.out_width()});
        const Array my_lse(DType::kFloat32, {2 * s.batch, s.num_heads, shape.chunk_length()});
        Array my_d_qkv(dtype(), {share.tokens(), s.qkv_width()});
        my_d_qkv.fill(7.0);
        const Array d_kv(dtype(), {rows, kv_width});
        reserve(sdpa_workspace_bytes(shape, dtype(), stream_));
        const Documents my_documents{.list = mine, .device = {}};
        sdpa_forward({.shape = shape, .out = my_out, .lse = my_lse, .qkv = my_qkv, .kv = kv, .documents = my_documents},
                     stream_);
        sdpa_backward({.shape = shape,
                       .d_qkv = my_d_qkv,
                       .d_kv = d_kv,
                       .d_out = my_d_out,
                       .out = my_out,
                       .lse = my_lse,
                       .qkv = my_qkv,
                       .kv = kv,
                       .documents = my_documents},
                      stream_);
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
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t i = 0; i < kv_width; ++i) {
            all_d_qkv[static_cast<size_t>(t * s.qkv_width() + s.out_width() + i)] += d_kv.at(t * kv_width + i);
          }
        }
      }
      expect_close(out, all_out, tolerance(), "out");
      expect_close(lse, all_lse, 1e-6, "lse");
      expect_close(d_qkv, all_d_qkv, gradient_tolerance(), "d_qkv");
    }
  }
}

class ContextSdpaSums : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, ContextSdpaSums, ::testing::Values(DType::kBFloat16),
                         [](const auto& instance) { return std::string(dtype_name(instance.param)); });

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
  const Array qkv = random({4, 8});
  const Array kv = random({8, 4});
  const Array out(dtype(), {4, 4});
  const Array lse(DType::kFloat32, {2, 2, 2});
  reserve(sdpa_workspace_bytes(shape, dtype(), stream_));
  SdpaForward args{.shape = shape, .out = out, .lse = lse, .qkv = qkv, .kv = qkv, .documents = {}};
  expect_error([&] { sdpa_forward(args, stream_); }, "expected " + std::string(dtype_name(dtype())) + " [8, 4]");
  args.kv = kv;
  sdpa_forward(args, stream_);
  constexpr Document kTooFew[] = {{0, 2}};
  args.documents.list = kTooFew;
  expect_error([&] { sdpa_forward(args, stream_); }, "documents have 2 tokens, expected all 4");
  args.documents = {};
  args.shape.seq_len = 3;
  expect_error([&] { sdpa_forward(args, stream_); }, "3 tokens in 2 chunks");
}

}  // namespace
}  // namespace octavo::context_sdpa_test
