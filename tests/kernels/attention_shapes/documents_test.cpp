#include "tests/kernels/attention_shapes/document_shares.h"

namespace octavo::documents_test {
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

}  // namespace
}  // namespace octavo::documents_test
