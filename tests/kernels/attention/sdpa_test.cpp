#include "kernels/attention/sdpa.h"

#include <algorithm>

#include "tests/kernels/op_fixture.h"

namespace octavo::sdpa_test {
namespace {

class SdpaTest : public OpTest {
 protected:
  // In bfloat16, scores and sums are still float32. Only `out` is rounded, and backward uses it for D = sum of d_out *
  // out. The head_dim terms of D are each off by up to 2^-8, and every gradient depends on D.
  double gradient_tolerance() const { return dtype() == DType::kBFloat16 ? 0x1p-7 : 1e-5; }
  void reserve_for(const SdpaShape& shape) { reserve(sdpa_workspace_bytes(shape, dtype(), stream_)); }
};
INSTANTIATE_COMPUTE_DTYPES(SdpaTest);

// The fields are {batch, seq_len, num_heads, num_kv_heads, head_dim}. The shapes cover one token, odd and prime sizes,
// groups of 1, of 2 and of all query heads per key/value head, and lengths of one block, several blocks and a partial
// block of the implementations.
constexpr SdpaShape kShapes[] = {{1, 1, 1, 1, 2},   {2, 7, 3, 1, 5},   {1, 64, 2, 2, 16},
                                 {1, 67, 4, 2, 32}, {2, 131, 2, 1, 8}, {1, 193, 6, 3, 6}};

struct Attention {
  Values out;
  Values lse;
};

// First position that token i of sequence b may attend to, at index b * seq_len + i.
using Start = std::vector<int32_t>;

Attention definition(const Values& qkv, const SdpaShape& s, const Start& start = {}) {
  Attention result{Values(static_cast<size_t>(s.batch * s.seq_len * s.out_width())),
                   Values(static_cast<size_t>(s.batch * s.num_heads * s.seq_len))};
  const auto row = [&](int64_t b, int64_t i, int64_t head) {
    return qkv.data() + (b * s.seq_len + i) * s.qkv_width() + head * s.head_dim;
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const int64_t k_head = s.num_heads + h / (s.num_heads / s.num_kv_heads);
      for (int64_t i = 0; i < s.seq_len; ++i) {
        const int64_t first = start.empty() ? 0 : start[static_cast<size_t>(b * s.seq_len + i)];
        double total = 0;
        double* out = result.out.data() + (b * s.seq_len + i) * s.out_width() + h * s.head_dim;
        for (int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (int64_t c = 0; c < s.head_dim; ++c) score += row(b, i, h)[c] * row(b, j, k_head)[c];
          const double p = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
          total += p;
          for (int64_t c = 0; c < s.head_dim; ++c) out[c] += p * row(b, j, k_head + s.num_kv_heads)[c];
        }
        for (int64_t c = 0; c < s.head_dim; ++c) out[c] /= total;
        result.lse[static_cast<size_t>((b * s.num_heads + h) * s.seq_len + i)] = std::log(total);
      }
    }
  }
  return result;
}

// Returns where the document of each token begins. Documents have `length` tokens, and every second sequence is shifted
// by one token, so that the sequences differ.
std::vector<int32_t> document_starts(const SdpaShape& s, int64_t length) {
  std::vector<int32_t> start;
  for (int64_t t = 0; t < s.batch * s.seq_len; ++t) {
    const int64_t shift = t / s.seq_len % 2;
    const int64_t i = t % s.seq_len;
    start.push_back(static_cast<int32_t>(std::max<int64_t>((i + shift) / length * length - shift, 0)));
  }
  return start;
}

std::vector<Document> documents_of(const std::vector<int32_t>& start, int64_t seq_len) {
  std::vector<Document> documents;
  append_documents(start, seq_len, documents);
  return documents;
}

TEST_P(SdpaTest, Forward) {
  for (const SdpaShape& s : kShapes) {
    reserve_for(s);
    const Array qkv = random({s.batch * s.seq_len, s.qkv_width()}, 1.5);
    const Array out(dtype(), {s.batch * s.seq_len, s.out_width()});
    const Array lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
    sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = {}}, stream_);
    const Attention expected = definition(qkv.values(), s);
    expect_close(out, expected.out, tolerance());
    expect_close(lse, expected.lse, 3e-6, "lse");
  }
}

TEST_P(SdpaTest, ForwardWithinDocuments) {
  for (const SdpaShape& s : kShapes) {
    for (const int64_t length : {1, 5, 64, 70}) {
      reserve_for(s);
      const Array qkv = random({s.batch * s.seq_len, s.qkv_width()}, 1.5);
      const Start start = document_starts(s, length);
      const std::vector<Document> documents = documents_of(start, s.seq_len);
      const Array out(dtype(), {s.batch * s.seq_len, s.out_width()});
      const Array lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
      sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = {.list = documents, .device = {}}},
                   stream_);
      const Attention expected = definition(qkv.values(), s, start);
      expect_close(out, expected.out, tolerance());
      expect_close(lse, expected.lse, 3e-6, "lse");
    }
  }
}

// A large constant is added to all scores, so that exp(score) alone would overflow float32.
TEST_P(SdpaTest, LargeScoresDoNotOverflow) {
  const SdpaShape s{1, 9, 1, 1, 4};
  reserve_for(s);
  Array qkv = random({9, 12});
  for (int64_t t = 0; t < 9; ++t) {
    qkv.set(t * 12, 32.0);
    qkv.set(t * 12 + 4, 32.0);
  }
  const Array out(dtype(), {9, 4});
  const Array lse(DType::kFloat32, {1, 1, 9});
  sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = {}}, stream_);
  const Attention expected = definition(qkv.values(), s);
  EXPECT_GT(lse.at(0), 400);
  // The float32 score of 512 has an error of up to 2^-15.
  expect_close(out, expected.out, tolerance() + 1e-4);
  expect_close(lse, expected.lse, 1e-6, "lse");
}

TEST_P(SdpaTest, Backward) {
  for (const SdpaShape& s : kShapes) {
    for (const bool masked : {false, true}) {
      reserve_for(s);
      const Array qkv = random({s.batch * s.seq_len, s.qkv_width()});
      const Start start = masked ? document_starts(s, 23) : Start();
      const std::vector<Document> list = documents_of(start, s.seq_len);
      const Documents documents{.list = list, .device = {}};
      const Array out(dtype(), {s.batch * s.seq_len, s.out_width()});
      const Array lse(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
      const Array d_out = random({s.batch * s.seq_len, s.out_width()});
      const Array d_qkv(dtype(), {s.batch * s.seq_len, s.qkv_width()});
      sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = documents}, stream_);
      sdpa_backward(
          {.shape = s, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = documents},
          stream_);
      const auto f = [&](const Values& x) { return dot(d_out, definition(x, s, start).out); };
      expect_gradient(d_qkv, f, qkv, gradient_tolerance(), masked ? "d_qkv, masked" : "d_qkv", qkv.size() / 97 + 1);
    }
  }
}

TEST_P(SdpaTest, DoesNotDependOnThreads) {
  const SdpaShape s{2, 71, 6, 3, 16};
  const Array qkv = random({142, s.qkv_width()});
  const Array d_out = random({142, s.out_width()});
  const Array out(dtype(), {142, s.out_width()});
  const Array lse(DType::kFloat32, {2, 6, 71});
  expect_thread_independent([&] {
    reserve_for(s);
    sdpa_forward({.shape = s, .out = out, .lse = lse, .qkv = qkv, .documents = {}}, stream_);
    return out;
  });
  expect_thread_independent([&] {
    reserve_for(s);
    const Array d_qkv(dtype(), {142, s.qkv_width()});
    sdpa_backward({.shape = s, .d_qkv = d_qkv, .d_out = d_out, .out = out, .lse = lse, .qkv = qkv, .documents = {}},
                  stream_);
    return d_qkv;
  });
}

TEST_P(SdpaTest, WrongShapesThrow) {
  const SdpaShape s{1, 3, 4, 2, 2};
  const Array qkv = random({3, s.qkv_width()});
  const Array out(dtype(), {3, s.out_width()});
  const Array lse(DType::kFloat32, {1, 4, 3});
  SdpaForward args{.shape = s, .out = qkv, .lse = lse, .qkv = qkv, .documents = {}};
  reserve_for(s);
  expect_error([&] { sdpa_forward(args, stream_); },
               "[3, 16], expected " + std::string(dtype_name(dtype())) + " [3, 8]");
  args.out = out;
  constexpr Document kWhole[] = {{0, 3}};
  constexpr Document kTooFew[] = {{0, 2}};
  constexpr Document kTooLong[] = {{0, 4}};
  constexpr Document kOutOfOrder[] = {{1, 2}, {0, 1}};
  for (const auto& [documents, error] : std::initializer_list<std::pair<std::span<const Document>, const char*>>{
           {kTooFew, "documents have 2 tokens, expected all 3"},
           {kTooLong,
            "document 0 has 4 tokens from token 0 on and 0 before them, expected a document that begins at token 0 and "
            "lies in one chunk of 3 tokens"},
           {kOutOfOrder, "document 0 has 2 tokens from token 1"}}) {
    args.documents.list = documents;
    expect_error([&] { sdpa_forward(args, stream_); }, error);
  }
  args.documents.list = kWhole;
  sdpa_forward(args, stream_);
  args.shape.num_kv_heads = 3;
  expect_error([&] { sdpa_forward(args, stream_); }, "4 query heads for 3 kv heads");
  args.shape = s;
  args.documents = {};
  reserve(sdpa_workspace_bytes(s, dtype(), stream_) - 4);
  expect_error([&] { sdpa_forward(args, stream_); }, "an op needs a workspace of");
}

TEST(SdpaSupport, GpusHaveThreeHeadSizesInBfloat16) {
  for (const int64_t head_dim : {32, 64, 128}) sdpa_check_supported(head_dim, DType::kBFloat16, Device::kCuda);
  sdpa_check_supported(6, DType::kFloat32, Device::kCpu);
  expect_error<InputError>([] { sdpa_check_supported(96, DType::kBFloat16, Device::kCuda); }, "32, 64 and 128");
  expect_error<InputError>([] { sdpa_check_supported(64, DType::kFloat32, Device::kCuda); },
                           "precision.compute is float32");
}

}  // namespace
}  // namespace octavo::sdpa_test
