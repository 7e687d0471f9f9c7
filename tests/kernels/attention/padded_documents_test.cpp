#include "kernels/attention/padded_documents.h"

#include <gtest/gtest.h>

#include <random>

namespace octavo::padded_documents_test {
namespace {

TEST(DocumentsTest, AreListedMostKeysFirst) {
  std::vector<Document> documents = {{100, 1}};  // of a micro-batch before
  append_documents(std::vector<int32_t>{0, 0, 2, 3, 3, 3, /* a sequence */ 0, 0, 0, 0, 0, 5}, 6, documents);
  EXPECT_EQ(documents, (std::vector<Document>{{100, 1}, {6, 5}, {3, 3}, {0, 2}, {2, 1}, {11, 1}}));
}

// Rank 0 of two has the tokens 0 to 2 and 9 to 11 of twelve. What a document has before a piece counts.
TEST(DocumentsTest, CountWhatLiesInOtherPieces) {
  std::vector<Document> documents;
  append_documents(std::vector<int32_t>{0, 0, 2, /* a piece */ 4, 10, 10}, 6, documents, {.rank = 0, .size = 2});
  EXPECT_EQ(documents, (std::vector<Document>{{3, 1, 5}, {0, 2, 0}, {4, 2, 0}, {2, 1, 0}}));
  std::vector<int32_t> numbers(documents.size() * kNumbersOfDocument);
  write_documents(documents, numbers.data());
  EXPECT_EQ(numbers, (std::vector<int32_t>{3, 1, 5, 0, 2, 0, 4, 2, 0, 2, 1, 0}));
}

// Sequences whose documents have lengths of about `mean`.
std::vector<Document> random_documents(const SdpaShape& shape, double mean) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> length(1 / mean);
  std::vector<int32_t> start;
  for (int64_t row = 0; row < shape.batch; ++row) {
    int64_t begin = 0;
    int64_t end = 0;
    for (int64_t t = 0; t < shape.seq_len; ++t) {
      if (t == end) begin = t, end += 1 + static_cast<int64_t>(length(random));
      start.push_back(static_cast<int32_t>(begin));
    }
  }
  std::vector<Document> documents;
  append_documents(start, shape.seq_len, documents);
  return documents;
}

TEST(PaddedDocumentsTest, BatchesHoldEveryDocumentOnce) {
  for (const SdpaShape& shape : {SdpaShape{2, 8192, 32, 8, 128},
                                 {1, 5003, 2, 1, 64},
                                 {32, 256, 4, 4, 64},
                                 {3, 17, 1, 1, 32},
                                 {1, 1, 1, 1, 32}}) {
    for (const double mean : {1.0, 50.0, 1024.0, 1e9}) {
      const std::vector<Document> list = random_documents(shape, mean);
      const Documents documents{.list = list, .device = {}};
      const SdpaShape largest = padded_shape(shape, 0);
      int64_t batches = 0;
      int64_t first = 0;
      for (; first < documents.size(); ++batches) {
        const PaddedBatch batch = padded_batch(documents, first, shape);
        EXPECT_EQ(batch.first, first);
        ASSERT_GT(batch.count, 0);
        EXPECT_LE(batch.count, batch.shape.batch);
        EXPECT_GE(batch.shape.seq_len, list[static_cast<size_t>(first)].length);
        EXPECT_LE(batch.shape.batch * batch.shape.seq_len,
                  largest.batch * largest.seq_len + batch.shape.batch);  // by rounding a length up
        first += batch.count;
      }
      EXPECT_EQ(first, documents.size());
      if (mean < 32) continue;
      const int64_t full = 2 * shape.batch * shape.seq_len / (largest.batch * largest.seq_len);
      EXPECT_LE(batches, full + num_padded_levels(shape)) << "documents of " << mean;
    }
  }
}

// Lengths are halved down to a tile; about 8,192 tokens a batch, or one sequence.
TEST(PaddedDocumentsTest, Shapes) {
  const SdpaShape shape{2, 8192, 32, 8, 128};
  EXPECT_EQ(num_padded_levels(shape), 8);
  EXPECT_EQ(padded_shape(shape, 0), (SdpaShape{1, 8192, 32, 8, 128}));
  EXPECT_EQ(padded_shape(shape, 7), (SdpaShape{128, 64, 32, 8, 128}));
  EXPECT_EQ(padded_shape({32, 1000, 4, 4, 64}, 0), (SdpaShape{8, 1000, 4, 4, 64}));
  EXPECT_EQ(padded_shape({32, 1000, 4, 4, 64}, 3), (SdpaShape{64, 125, 4, 4, 64}));
  EXPECT_EQ(padded_shape({1, 16384, 4, 4, 64}, 0), (SdpaShape{1, 16384, 4, 4, 64}));
}

TEST(PaddedDocumentsTest, TensorsLieApart) {
  const SdpaShape shape{3, 17, 4, 2, 32};
  const int64_t bytes = PaddedTensors(shape, DType::kBFloat16, nullptr).bytes;
  std::vector<char> memory(static_cast<size_t>(bytes));
  const PaddedTensors t(shape, DType::kBFloat16, memory.data());
  const char* end = memory.data();
  for (const Tensor& tensor : {t.lengths, t.qkv, t.d_qkv, t.out, t.d_out, t.lse}) {
    const char* begin = static_cast<const char*>(tensor.raw());
    EXPECT_GE(begin, end);
    end = begin + tensor.bytes();
  }
  EXPECT_LE(end, memory.data() + bytes);
  EXPECT_EQ(bytes % 256, 0);
}

}  // namespace
}  // namespace octavo::padded_documents_test
