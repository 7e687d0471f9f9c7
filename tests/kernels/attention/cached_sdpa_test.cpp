#include "kernels/attention/cached_sdpa.h"

#include <utility>

#include "tests/kernels/op_fixture.h"

namespace octavo::cached_sdpa_test {
namespace {

class CachedSdpaTest : public OpTest {
 protected:
  // Returns the qkv rows of tokens [begin, end) of each sequence.
  Array rows(const Array& qkv, const SdpaShape& s, int64_t begin, int64_t end) {
    Array part(dtype(), {s.batch * (end - begin), s.qkv_width()});
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < (end - begin) * s.qkv_width(); ++i) {
        part.set(b * (end - begin) * s.qkv_width() + i, qkv.at((b * s.seq_len + begin) * s.qkv_width() + i));
      }
    }
    return part;
  }
};
INSTANTIATE_COMPUTE_DTYPES(CachedSdpaTest);

// Computes in float64 the attention output of token i of sequence b from the definition.
Values attention(const Array& qkv, const SdpaShape& s, int64_t b, int64_t i) {
  Values out(static_cast<size_t>(s.out_width()));
  const auto at = [&](int64_t token, int64_t head, int64_t c) {
    return qkv.at((b * s.seq_len + token) * s.qkv_width() + head * s.head_dim + c);
  };
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const int64_t k_head = s.num_heads + h / (s.num_heads / s.num_kv_heads);
    double total = 0;
    double* head_out = out.data() + h * s.head_dim;
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0;
      for (int64_t c = 0; c < s.head_dim; ++c) score += at(i, h, c) * at(j, k_head, c);
      const double p = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
      total += p;
      for (int64_t c = 0; c < s.head_dim; ++c) head_out[c] += p * at(j, k_head + s.num_kv_heads, c);
    }
    for (int64_t c = 0; c < s.head_dim; ++c) head_out[c] /= total;
  }
  return out;
}

// The fields are {batch, seq_len, num_heads, num_kv_heads, head_dim}.
constexpr SdpaShape kShapes[] = {{1, 3, 1, 1, 2}, {2, 7, 3, 1, 5}, {3, 29, 4, 2, 32}, {1, 67, 6, 3, 96}};

// Each call appends one to three tokens. The cache has more sequences and positions than the test uses.
TEST_P(CachedSdpaTest, ContinuesSequences) {
  for (const SdpaShape& s : kShapes) {
    const Array qkv = random({s.batch * s.seq_len, s.qkv_width()}, 1.5);
    const Array keys(dtype(), {s.batch + 1, s.seq_len + 2, s.num_kv_heads * s.head_dim});
    const Array values(dtype(), {s.batch + 1, s.seq_len + 2, s.num_kv_heads * s.head_dim});
    const SdpaCache cache{.keys = keys, .values = values};
    for (int64_t position = 0; position < s.seq_len;) {
      const int64_t tokens = std::min(position % 3 + 1, s.seq_len - position);
      SdpaShape part = s;
      part.seq_len = tokens;
      const Array rows = this->rows(qkv, s, position, position + tokens);
      const Array out(dtype(), {s.batch * tokens, s.out_width()});
      sdpa_cache_append({.shape = part, .cache = cache, .qkv = rows, .position = position}, stream_);
      cached_sdpa({.shape = part, .out = out, .qkv = rows, .cache = cache, .position = position}, stream_);
      Values expected;
      for (int64_t row = 0; row < s.batch * tokens; ++row) {
        const Values one = attention(qkv, s, row / tokens, position + row % tokens);
        expected.insert(expected.end(), one.begin(), one.end());
      }
      expect_close(out, expected, tolerance());
      position += tokens;
    }
    // Positions of the cache without a token are unchanged.
    const int64_t width = s.num_kv_heads * s.head_dim;
    for (const Array* all : {&keys, &values}) {
      EXPECT_TRUE(std::isnan(all->at(s.seq_len * width)));
      EXPECT_TRUE(std::isnan(all->at(all->size() - width)));
      EXPECT_FALSE(std::isnan(all->at(s.seq_len * width - 1)));
    }
  }
}

// Without subtracting the largest score, exp(score) would overflow float32 at size 32 and be zero at size -32.
TEST_P(CachedSdpaTest, LargeScores) {
  const SdpaShape s{1, 9, 1, 1, 4};
  for (const double size : {32.0, -32.0}) {
    Array qkv = random({9, 12});
    for (int64_t t = 0; t < 9; ++t) {
      qkv.set(t * 12, 32.0);
      qkv.set(t * 12 + 4, size + (t == 4 ? 0.25 : 0));
    }
    const Array keys(dtype(), {1, 9, 4});
    const Array values(dtype(), {1, 9, 4});
    const Array out(dtype(), {9, 4});
    sdpa_cache_append({.shape = s, .cache = {keys, values}, .qkv = qkv}, stream_);
    cached_sdpa({.shape = s, .out = out, .qkv = qkv, .cache = {keys, values}}, stream_);
    // The definition does not subtract the maximum, so scores near -1024 would underflow in it. A constant shift of all
    // scores leaves the output unchanged.
    if (size < 0) {
      for (int64_t t = 0; t < 9; ++t) qkv.set(t * 12 + 4, t == 4 ? 0.25 : 0);
    }
    Values expected;
    for (int64_t i = 0; i < 9; ++i) {
      const Values one = attention(qkv, s, 0, i);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    expect_close(out, expected, dtype() == DType::kBFloat16 ? tolerance() : 1e-4);
  }
}

TEST_P(CachedSdpaTest, DoesNotDependOnThreads) {
  const SdpaShape s{2, 1, 6, 2, 64};
  const Array keys = random({2, 131, 128});
  const Array values = random({2, 131, 128});
  const Array qkv = random({2, s.qkv_width()});
  expect_thread_independent([&] {
    Array out(dtype(), {2, s.out_width()});
    cached_sdpa({.shape = s, .out = out, .qkv = qkv, .cache = {keys, values}, .position = 130}, stream_);
    return out;
  });
}

TEST_P(CachedSdpaTest, RefusesWhatDoesNotFit) {
  const SdpaShape s{2, 3, 2, 1, 8};
  const Array qkv = random({6, s.qkv_width()});
  const Array out(dtype(), {6, 16});
  const Array keys = random({2, 5, 8});
  const Array fewer = random({1, 5, 8});
  const auto append = [&](const Array& cache, int64_t position) {
    sdpa_cache_append({.shape = s, .cache = {cache, cache}, .qkv = qkv, .position = position}, stream_);
  };
  append(keys, 2);
  expect_error([&] { append(keys, 3); },
               "3 tokens of 2 sequences from position 3, but the cache has 5 positions of 2 sequences");
  expect_error([&] { append(fewer, 0); }, "the cache has 5 positions of 1");
  expect_error(
      [&] {
        cached_sdpa({.shape = s, .out = out, .qkv = qkv, .cache = {keys, fewer}, .position = 0}, stream_);
      },
      "cached values");
  const SdpaShape large{1, 1, 1, 1, 258};
  const Array large_qkv = random({1, large.qkv_width()});
  const Array large_cache = random({1, 1, 258});
  const Array large_out(dtype(), {1, 258});
  expect_error(
      [&] {
        cached_sdpa({.shape = large, .out = large_out, .qkv = large_qkv, .cache = {large_cache, large_cache}}, stream_);
      },
      "head_dim is 258");
}

}  // namespace
}  // namespace octavo::cached_sdpa_test
