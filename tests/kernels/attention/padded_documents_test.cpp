// Tests of attention within documents on GPUs. Loops on the CPU replace the kernels and cuDNN, so the tests check the
// index arithmetic of all copies, and that batches of documents give the same results as attention on the CPU.
#include "kernels/attention/padded_documents.h"

#include <numeric>

#include "tests/kernels/attention_shapes/document_shares.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::padded_documents_test {
namespace {

TEST(DocumentsTest, AreListedInTheOrderOfTheirTokens) {
  // A document of an earlier micro-batch.
  std::vector<Document> documents = {{100, 1}};
  append_documents(std::vector<int32_t>{0, 0, 2, 3, 3, 3, /* next sequence */ 0, 0, 0, 0, 0, 5}, 6, documents);
  EXPECT_EQ(documents, (std::vector<Document>{{100, 1}, {0, 2}, {2, 1}, {3, 3}, {6, 5}, {11, 1}}));
}

// Rank 0 of two ranks has tokens 0 to 2 and 9 to 11 of twelve. A document that begins before a chunk counts its tokens
// in earlier chunks.
TEST(DocumentsTest, CountTokensInEarlierChunks) {
  std::vector<Document> documents;
  append_documents(std::vector<int32_t>{0, 0, 2, /* next chunk */ 4, 10, 10}, 6, documents, {.rank = 0, .size = 2});
  EXPECT_EQ(documents, (std::vector<Document>{{0, 2, 0}, {2, 1, 0}, {3, 1, 5}, {4, 2, 0}}));
  std::vector<int32_t> numbers(documents.size() * kNumbersOfDocument);
  write_documents(documents, numbers.data());
  EXPECT_EQ(numbers, (std::vector<int32_t>{0, 2, 0, 2, 1, 0, 3, 1, 5, 4, 2, 0}));
}

// Compares the offsets that the shape gives for each run with the position of every token and the start of its
// document.
TEST(RunsTest, CoverEveryTokenWithTheKeysOfItsDocument) {
  for_each_share([](Share& share) {
    std::vector<int> seen(static_cast<size_t>(share.tokens()));
    for (const Document& run : share.list) {
      const int64_t first = share.shape.first_key(run);
      for (int64_t i = 0; i < run.length; ++i) {
        const int64_t t = run.begin + i;
        const int64_t row = share.row(t);
        const int64_t sequence = row / share.whole.seq_len * share.whole.seq_len;
        ++seen[static_cast<size_t>(t)];
        // Query i attends to keys 0 to before + i, that is from the start of its document to itself.
        ASSERT_EQ(first, sequence + share.starts[static_cast<size_t>(t)]);
        ASSERT_EQ(first + run.before + i, row);
        const int64_t in_share = t % share.shape.seq_len;
        const int64_t chunk = share.shape.chunk_length();
        ASSERT_EQ(share.shape.chunk_of(run), in_share / chunk);
        const int64_t of_lse = in_share / chunk * share.whole.batch + t / share.shape.seq_len;
        const int64_t heads = share.whole.num_heads;
        ASSERT_EQ(share.shape.first_lse(run, heads - 1) + i, (of_lse * heads + heads - 1) * chunk + in_share % chunk);
      }
      ASSERT_EQ(first + run.keys() - 1, share.row(run.begin + run.length - 1));
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), share.tokens());
  });
}

TEST(RunsTest, OfOneChunkShareNoKeys) {
  for_each_share([](Share& share) {
    for (int64_t chunk = 0; chunk < share.shape.context.chunks(); ++chunk) {
      std::vector<int> seen(static_cast<size_t>(share.whole.batch * share.whole.seq_len));
      for (const Document& run : share.list) {
        if (share.shape.chunk_of(run) != chunk) continue;
        for (int64_t key = 0; key < run.keys(); ++key) {
          ASSERT_EQ(++seen[static_cast<size_t>(share.shape.first_key(run) + key)], 1);
        }
      }
    }
  });
}

TEST(PaddedBatchTest, HoldEveryRunOnce) {
  for_each_share([](Share& share) {
    const Documents documents = share.documents();
    int64_t first = 0;
    int64_t long_batches = 0;
    while (first < documents.size()) {
      const PaddedBatch batch = padded_batch(documents, first, share.shape);
      ASSERT_EQ(batch.first, first);
      ASSERT_GT(batch.count, 0);
      ASSERT_LE(batch.count, batch.shape.batch);
      ASSERT_GE(batch.keys, batch.shape.seq_len);
      if (batch.keys > std::max<int64_t>(share.shape.chunk_length(), 2)) {
        ++long_batches;
        ASSERT_EQ(batch.count, 1);
      }
      for (const Document& run : documents.list.subspan(static_cast<size_t>(first), static_cast<size_t>(batch.count))) {
        ASSERT_LE(run.length, batch.shape.seq_len);
        ASSERT_LE(run.keys(), batch.keys);
      }
      first += batch.count;
    }
    EXPECT_EQ(first, documents.size());
    EXPECT_LE(long_batches, share.shape.context.chunks() * share.whole.batch) << "one of a chunk of each sequence";
  });
}

// A few batches of about 8,192 tokens (or of one sequence) hold all documents of whole sequences.
TEST(PaddedBatchTest, AreFewAndOfOneSize) {
  for_each_list({{2, 8192, 32, 8, 128}, {1, 5003, 2, 1, 64}, {32, 256, 4, 4, 64}, {3, 17, 1, 1, 32}, {1, 1, 1, 1, 32}},
                [](const SdpaShape& shape, const std::vector<Document>& list, double mean) {
                  const Documents documents{.list = list, .device = {}};
                  const SdpaShape largest = empty_padded_batch(shape, 0).shape;
                  int64_t batches = 0;
                  for (int64_t first = 0; first < documents.size(); ++batches) {
                    const PaddedBatch batch = padded_batch(documents, first, shape);
                    EXPECT_TRUE(batch.packed);
                    EXPECT_EQ(batch.keys, batch.shape.seq_len);
                    EXPECT_LE(batch.shape.batch * batch.shape.seq_len,
                              // The second term allows for rounding the length up.
                              largest.batch * largest.seq_len + batch.shape.batch);
                    first += batch.count;
                  }
                  if (mean < 32) return;
                  const int64_t full = 3 * shape.batch * shape.seq_len / (largest.batch * largest.seq_len);
                  EXPECT_LE(batches, full + num_padded_levels(shape)) << "documents of " << mean;
                });
}

// The padded length is halved from level to level down to one tile.
TEST(PaddedBatchTest, ShapesOfWholeSequences) {
  const auto shape_of = [](const SdpaShape& shape, int64_t level) { return empty_padded_batch(shape, level).shape; };
  const SdpaShape shape{2, 8192, 32, 8, 128};
  EXPECT_EQ(num_padded_levels(shape), 8);
  EXPECT_EQ(shape_of(shape, 0), (SdpaShape{1, 8192, 32, 8, 128}));
  EXPECT_EQ(shape_of(shape, 7), (SdpaShape{128, 64, 32, 8, 128}));
  EXPECT_EQ(shape_of({32, 1000, 4, 4, 64}, 0), (SdpaShape{8, 1000, 4, 4, 64}));
  EXPECT_EQ(shape_of({32, 1000, 4, 4, 64}, 3), (SdpaShape{64, 125, 4, 4, 64}));
  EXPECT_EQ(shape_of({1, 16384, 4, 4, 64}, 0), (SdpaShape{1, 16384, 4, 4, 64}));
}

// While there are more keys than a chunk has, each level halves the number of keys, with one run per batch. Further
// levels halve the chunk, as for documents in sequences of its length.
TEST(PaddedBatchTest, ShapesOfSharedSequences) {
  const SdpaShape shape{1, 16384, 32, 8, 128, {.rank = 1, .size = 4}};
  EXPECT_EQ(num_padded_levels(shape), 3 + 8);
  const auto expect_level = [&](int64_t level, const SdpaShape& queries, int64_t keys) {
    const PaddedBatch batch = empty_padded_batch(shape, level);
    EXPECT_EQ(batch.shape, queries) << level;
    EXPECT_EQ(batch.keys, keys) << level;
  };
  expect_level(0, {1, 8192, 32, 8, 128}, 65536);
  expect_level(2, {1, 8192, 32, 8, 128}, 16384);
  expect_level(3, {1, 8192, 32, 8, 128}, 8192);
  expect_level(4, {2, 4096, 32, 8, 128}, 4096);
  expect_level(10, {128, 64, 32, 8, 128}, 64);
  // Each of three ranks has chunks of 128 tokens.
  const SdpaShape small{2, 256, 4, 4, 64, {.rank = 0, .size = 3}};
  EXPECT_EQ(num_padded_levels(small), 3 + 2);
  EXPECT_EQ(empty_padded_batch(small, 2).keys, 192);
  EXPECT_EQ(empty_padded_batch(small, 3).shape, (SdpaShape{4, 128, 4, 4, 64}));
  EXPECT_EQ(empty_padded_batch(small, 4).shape, (SdpaShape{8, 64, 4, 4, 64}));
}

TEST(PaddedBatchTest, TensorsLieApart) {
  for (const bool packed : {false, true}) {
    const PaddedBatch batch{.shape = {3, 17, 4, 2, 32}, .keys = packed ? 17 : 29, .packed = packed};
    const int64_t bytes = PaddedTensors(batch, DType::kBFloat16, nullptr).bytes;
    std::vector<char> memory(static_cast<size_t>(bytes));
    const PaddedTensors t(batch, DType::kBFloat16, memory.data());
    std::vector<Tensor> tensors{t.query_lengths, t.qkv, t.d_qkv, t.out, t.d_out, t.lse};
    if (!packed) tensors.insert(tensors.end(), {t.key_lengths, t.kv, t.d_kv});
    const auto address = [](const Tensor& tensor) { return static_cast<const char*>(tensor.raw()); };
    std::sort(tensors.begin(), tensors.end(),
              [&](const Tensor& a, const Tensor& b) { return address(a) < address(b); });
    const char* end = memory.data();
    for (const Tensor& tensor : tensors) {
      EXPECT_GE(address(tensor), end);
      end = address(tensor) + tensor.bytes();
    }
    EXPECT_LE(end, memory.data() + bytes);
    EXPECT_EQ(bytes % 256, 0);
    EXPECT_EQ(t.key_lengths.raw() == t.query_lengths.raw(), packed);
    EXPECT_EQ(t.qkv.dim(1), packed ? batch.shape.qkv_width() : batch.shape.out_width());
  }
}

// Implements the kernels of kernels/attention/padded_documents.cu in float32 as loops over their blocks, and attention
// of a batch as cuDNN computes it: in a sequence with m queries and n keys, query i attends to keys 0 to i + n - m.
// Outputs for padding are NaN, so that a later read of padding is detected.
class LoopOps : public PaddedOps {
 public:
  void padded_lengths(const Tensor& lengths, const PaddedRows& map) override {
    for (int64_t i = 0; i < lengths.numel(); ++i) {
      lengths.data<int32_t>()[i] = static_cast<int32_t>(std::max<int64_t>(map.length(i), 1));
    }
  }
  void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) override {
    for_each_row(padded, rows, map, [](float* in_padding, const float* row, int64_t width) {
      for (int64_t c = 0; c < width; ++c) in_padding[c] = row == nullptr ? 0.0f : row[c];
    });
  }
  void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) override {
    for_each_row(padded, rows, map, [](const float* of_padded, float* row, int64_t width) {
      for (int64_t c = 0; row != nullptr && c < width; ++c) row[c] = of_padded[c];
    });
  }
  void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t chunk) override {
    for_each_row(
        padded, rows, map,
        [](const float* of_padded, float* row, int64_t width) {
          for (int64_t c = 0; row != nullptr && c < width; ++c) row[c] += of_padded[c];
        },
        chunk);
  }
  void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) override {
    for_each_head(padded, map, [&](float* in_padding, int64_t first, int64_t length) {
      for (int64_t i = 0; i < map.seq_len; ++i) in_padding[i] = i < length ? lse.data<float>()[first + i] : 0.0f;
    });
  }
  void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) override {
    for_each_head(padded, map, [&](const float* of_padded, int64_t first, int64_t length) {
      for (int64_t i = 0; i < length; ++i) lse.data<float>()[first + i] = of_padded[i];
    });
  }

  void forward(const PaddedBatch& batch, const PaddedTensors& t) override {
    expect_zeros_behind(t.qkv, t.query_lengths);
    if (!batch.packed) expect_zeros_behind(t.kv, t.key_lengths);
    std::fill_n(t.out.data<float>(), t.out.numel(), std::nanf(""));
    std::fill_n(t.lse.data<float>(), t.lse.numel(), std::nanf(""));
    const int64_t d = batch.shape.head_dim;
    const KeyRows keys(batch.shape, batch.packed, t.qkv, t.kv);
    for_each_query(batch, t, [&](const Query& a) {
      const Values s = scores(batch, keys, a);
      const double max = *std::max_element(s.begin(), s.end());
      const double sum =
          std::accumulate(s.begin(), s.end(), 0.0, [&](double all, double x) { return all + std::exp(x - max); });
      *a.lse = static_cast<float>(max + std::log(sum));
      for (int64_t c = 0; c < d; ++c) {
        double value = 0;
        for (size_t j = 0; j < s.size(); ++j) {
          value += std::exp(s[j] - max) / sum * static_cast<double>(v(batch, keys, a, static_cast<int64_t>(j))[c]);
        }
        a.out[c] = static_cast<float>(value);
      }
    });
  }

  void backward(const PaddedBatch& batch, const PaddedTensors& t) override {
    for (const Tensor& rows : {t.qkv, t.out, t.d_out}) expect_zeros_behind(rows, t.query_lengths);
    if (!batch.packed) expect_zeros_behind(t.kv, t.key_lengths);
    const KeyRows keys(batch.shape, batch.packed, t.qkv, t.kv);
    const KeyRows d_keys(batch.shape, batch.packed, t.d_qkv, t.d_kv);
    for (const Tensor& rows : {t.d_qkv, d_keys.rows}) std::fill_n(rows.data<float>(), rows.numel(), std::nanf(""));
    for (int64_t row = 0; row < d_keys.rows.dim(0); ++row) {
      if (row % batch.keys >= t.key_lengths.data<int32_t>()[row / batch.keys]) continue;
      std::fill_n(d_keys.rows.data<float>() + row * d_keys.rows.dim(1) + d_keys.k_column, batch.shape.kv_width(), 0.0f);
    }
    const int64_t d = batch.shape.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    for_each_query(batch, t, [&](const Query& a) {
      const Values s = scores(batch, keys, a);
      std::fill_n(a.d_q, d, 0.0f);
      double delta = 0;
      for (int64_t c = 0; c < d; ++c) delta += static_cast<double>(a.d_out[c] * a.out[c]);
      for (int64_t j = 0; j < std::ssize(s); ++j) {
        const double p = std::exp(s[static_cast<size_t>(j)] - static_cast<double>(*a.lse));
        double dp = 0;
        for (int64_t c = 0; c < d; ++c) dp += static_cast<double>(a.d_out[c] * v(batch, keys, a, j)[c]);
        const double ds = p * (dp - delta) * scale;
        for (int64_t c = 0; c < d; ++c) {
          a.d_q[c] += static_cast<float>(ds * static_cast<double>(k(batch, keys, a, j)[c]));
          k(batch, d_keys, a, j)[c] += static_cast<float>(ds * static_cast<double>(a.q[c]));
          v(batch, d_keys, a, j)[c] += static_cast<float>(p * static_cast<double>(a.d_out[c]));
        }
      }
    });
  }

 private:
  template <typename Body>
  static void for_each_row(const Tensor& padded, const Tensor& rows, const PaddedRows& map, const Body& body,
                           int64_t chunk = -1) {
    const int64_t width = padded.dim(1);
    ASSERT_LE(width, rows.dim(1));
    for (int64_t block = 0; block < padded.dim(0); ++block) {
      const int64_t sequence = block / map.seq_len;
      const int64_t position = block % map.seq_len;
      float* row = nullptr;
      if (position < map.length(sequence) && (chunk < 0 || map.chunk(sequence) == chunk)) {
        const int64_t r = map.first_row(sequence) + position;
        ASSERT_TRUE(r >= 0 && r < rows.dim(0)) << r;
        row = rows.data<float>() + r * rows.dim(1);
      }
      body(padded.data<float>() + block * width, row, width);
    }
  }
  template <typename Body>
  static void for_each_head(const Tensor& padded, const PaddedRows& map, const Body& body) {
    const int64_t heads = padded.dim(1);
    ASSERT_EQ(padded.dim(2), map.seq_len);
    for (int64_t block = 0; block < padded.dim(0) * heads; ++block) {
      const int64_t length = map.length(block / heads);
      const int64_t first = length > 0 ? map.first_lse(block / heads, block % heads) : 0;
      body(padded.data<float>() + block * map.seq_len, first, length);
    }
  }

  // One head of one query: its sequence b, the number of keys it attends to, and its key/value head.
  struct Query {
    int64_t b, keys, kv_head;
    float *q, *out, *d_out, *d_q, *lse;
  };
  template <typename Body>
  static void for_each_query(const PaddedBatch& batch, const PaddedTensors& t, const Body& body) {
    const SdpaShape& s = batch.shape;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t queries = t.query_lengths.data<int32_t>()[b];
      const int64_t keys = t.key_lengths.data<int32_t>()[b];
      ASSERT_TRUE(queries <= s.seq_len && keys <= batch.keys && queries <= keys) << queries << " over " << keys;
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t head = 0; head < s.num_heads; ++head) {
          const int64_t row = b * s.seq_len + i;
          const int64_t of_query = row * t.qkv.dim(1) + head * s.head_dim;
          const int64_t of_out = row * s.out_width() + head * s.head_dim;
          body(Query{.b = b,
                     .keys = i + keys - queries + 1,
                     .kv_head = head / (s.num_heads / s.num_kv_heads),
                     .q = t.qkv.data<float>() + of_query,
                     .out = t.out.data<float>() + of_out,
                     .d_out = t.d_out.data<float>() + of_out,
                     .d_q = t.d_qkv.data<float>() + of_query,
                     .lse = t.lse.data<float>() + (b * s.num_heads + head) * s.seq_len + i});
        }
      }
    }
  }
  static float* row_of(const PaddedBatch& batch, const KeyRows& keys, const Query& a, int64_t j) {
    return keys.rows.data<float>() + (a.b * batch.keys + j) * keys.rows.dim(1) + a.kv_head * batch.shape.head_dim;
  }
  static float* k(const PaddedBatch& batch, const KeyRows& keys, const Query& a, int64_t j) {
    return row_of(batch, keys, a, j) + keys.k_column;
  }
  static float* v(const PaddedBatch& batch, const KeyRows& keys, const Query& a, int64_t j) {
    return row_of(batch, keys, a, j) + keys.v_column;
  }
  static Values scores(const PaddedBatch& batch, const KeyRows& keys, const Query& a) {
    Values s(static_cast<size_t>(a.keys));
    const double scale = 1 / std::sqrt(static_cast<double>(batch.shape.head_dim));
    for (int64_t j = 0; j < a.keys; ++j) {
      double sum = 0;
      for (int64_t c = 0; c < batch.shape.head_dim; ++c) sum += static_cast<double>(a.q[c] * k(batch, keys, a, j)[c]);
      s[static_cast<size_t>(j)] = sum * scale;
    }
    return s;
  }
  static void expect_zeros_behind(const Tensor& rows, const Tensor& lengths) {
    const int64_t seq_len = rows.dim(0) / lengths.dim(0);
    for (int64_t row = 0; row < rows.dim(0); ++row) {
      if (row % seq_len < lengths.data<int32_t>()[row / seq_len]) continue;
      for (int64_t c = 0; c < rows.dim(1); ++c) ASSERT_EQ(rows.data<float>()[row * rows.dim(1) + c], 0.0f);
    }
  }
};

class PaddedDocumentsTest : public OpTest {
 protected:
  // Reserves exactly the workspace of the largest batch.
  void reserve_for_batches(const SdpaShape& shape) {
    int64_t bytes = 0;
    for (int64_t level = 0; level < num_padded_levels(shape); ++level) {
      bytes = std::max(bytes, PaddedTensors(empty_padded_batch(shape, level), dtype(), nullptr).bytes);
    }
    reserve(bytes);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, PaddedDocumentsTest, ::testing::Values(DType::kFloat32),
                         [](const auto& instance) { return std::string(dtype_name(instance.param)); });

TEST_P(PaddedDocumentsTest, EqualAttentionWithinDocuments) {
  for_each_share([&](Share& share) {
    const SdpaShape& s = share.shape;
    const int64_t all_keys = share.whole.batch * share.whole.seq_len;
    const Array qkv = random({share.tokens(), s.qkv_width()});
    const Array kv = random({all_keys, share.shape.kv_width()});
    const Array d_out = random({share.tokens(), s.out_width()});
    const auto run = [&](bool in_batches) {
      const Array out(dtype(), {share.tokens(), s.out_width()});
      const Array lse(DType::kFloat32, {s.context.chunks() * s.batch, s.num_heads, s.chunk_length()});
      Array d_qkv(dtype(), {share.tokens(), s.qkv_width()});
      d_qkv.fill(7.0);
      const Array d_kv(dtype(), {all_keys, share.shape.kv_width()});
      const SdpaForward forward{
          .shape = share.shape, .out = out, .lse = lse, .qkv = qkv, .kv = kv, .documents = share.documents()};
      const SdpaBackward backward{.shape = share.shape,
                                  .d_qkv = d_qkv,
                                  .d_kv = d_kv,
                                  .d_out = d_out,
                                  .out = out,
                                  .lse = lse,
                                  .qkv = qkv,
                                  .kv = kv,
                                  .documents = share.documents()};
      if (in_batches) {
        LoopOps ops;
        reserve_for_batches(share.shape);
        forward_within_documents(forward, ops, stream_);
        backward_within_documents(backward, ops, stream_);
      } else {
        reserve(sdpa_workspace_bytes(share.shape, dtype(), stream_));
        sdpa_forward(forward, stream_);
        sdpa_backward(backward, stream_);
      }
      std::vector<Array> made{out, lse, d_qkv};
      if (s.context.size > 1) made.push_back(d_kv);
      return made;
    };
    const std::vector<Array> expected = run(false);
    const std::vector<Array> made = run(true);
    constexpr const char* kNames[] = {"out", "lse", "d_qkv", "d_kv"};
    for (size_t i = 0; i < made.size(); ++i) expect_close(made[i], expected[i].values(), 1e-6, kNames[i]);
  });
}

}  // namespace
}  // namespace octavo::padded_documents_test
