// Tests of the division of documents into launches of FlashAttention, and of the order of their tiles.
#include "kernels/flash_attention/flash_documents.h"

#include "tests/kernels/attention_shapes/document_shares.h"

namespace octavo::flash_documents_test {
namespace {

// Expects that the rows of the documents, as FlashAttention places them with `tile` rows per tile, lie apart within
// `rows` rows.
struct PaddedRowsCheck {
  int64_t tile;
  int64_t rows;
  int64_t end = 0;
  int64_t index = 0;

  void add(int64_t begin, int64_t length) {
    const int64_t first = (begin + index++ * tile) / tile * tile;
    ASSERT_GE(first, end);
    end = first + num_tiles(length, tile) * tile;
    ASSERT_LE(end, rows);
  }
};

void check_launch(const SdpaShape& shape, std::span<const Document> list, const DocumentLaunch& launch) {
  const FlashBackwardSize size = backward_size(shape, launch);
  PaddedRowsCheck queries{.tile = flash_query_tile(shape.head_dim), .rows = size.query_rows};
  PaddedRowsCheck keys{.tile = kFlashKeyTile, .rows = size.key_rows};
  int64_t next_key = launch.first_key;
  int64_t tiles = 0;
  for (const Document& run : list.subspan(static_cast<size_t>(launch.first), static_cast<size_t>(launch.count))) {
    ASSERT_GE(run.begin, launch.window);
    ASSERT_LE(run.begin + run.length, launch.window + launch.num_queries);
    ASSERT_EQ(shape.first_key(run), next_key) << "the keys of a launch are adjacent";
    ASSERT_EQ(shape.chunk_of(run), shape.chunk_of({.begin = static_cast<int32_t>(launch.window)}));
    next_key += run.keys();
    tiles += num_tiles(run.keys(), kFlashKeyTile);
    ASSERT_LE(run.length, launch.most_queries);
    ASSERT_LE(run.keys(), launch.most_keys);
    queries.add(run.begin - launch.window, run.length);
    keys.add(shape.first_key(run) - launch.first_key, run.keys());
  }
  EXPECT_EQ(next_key, launch.first_key + launch.num_keys);
  EXPECT_EQ(tiles, launch.key_tiles);
  const FlashBackwardTensors sums(shape, size, nullptr);
  const DocumentBackwardTensors tensors(shape, DType::kBFloat16, nullptr);
  EXPECT_LE(launch.key_tiles, tensors.tiles.dim(0));
  EXPECT_LE(tensors.bytes + sums.bytes, document_workspace_bytes(shape, DType::kBFloat16));
  if (tensors.early_d_kv.dim(0) > 0 && shape.chunk_of({.begin = static_cast<int32_t>(launch.window)}) == 0) {
    EXPECT_LE(launch.num_keys, tensors.early_d_kv.dim(0));
  }
}

// Checks the launches with at most `most` documents each.
void check_launches(const SdpaShape& shape, std::span<const Document> list, int64_t most) {
  const std::vector<DocumentLaunch> launches = document_launches(list, shape, most);
  int64_t next = 0;
  for (const DocumentLaunch& launch : launches) {
    ASSERT_EQ(launch.first, next);
    ASSERT_GT(launch.count, 0);
    ASSERT_LE(launch.count, most);
    next += launch.count;
    ASSERT_NO_FATAL_FAILURE(check_launch(shape, list, launch));
  }
  EXPECT_EQ(next, std::ssize(list));
  const int64_t windows = num_tiles(shape.batch * shape.seq_len, window_tokens(shape));
  EXPECT_LE(std::ssize(launches), windows + std::ssize(list) / most);
}

TEST(DocumentLaunchTest, HoldEveryRunOnce) {
  for_each_share([](Share& share) {
    for (const int64_t head_dim : {64, 128}) {
      share.shape.head_dim = head_dim;
      check_launches(share.shape, share.list, documents_per_backward(share.shape));
      check_launches(share.shape, share.list, 1);
    }
  });
}

TEST(DocumentLaunchTest, OfLongAndManySequences) {
  for_each_list(
      {{2, 8192, 32, 8, 128}, {5, 8192, 32, 8, 64}, {1, 65536, 8, 2, 128}, {70, 1000, 4, 2, 64}, {3, 5003, 2, 1, 64}},
      [](const SdpaShape& shape, const std::vector<Document>& list, double /*mean*/) {
        check_launches(shape, list, documents_per_backward(shape));
      });
}

TEST(DocumentLaunchTest, WindowsHaveAboutTheSameNumberOfTokens) {
  EXPECT_EQ(window_tokens({2, 8192, 32, 8, 128}), 16384);
  EXPECT_EQ(window_tokens({1, 8192, 32, 8, 128}), 8192);
  EXPECT_EQ(window_tokens({70, 1000, 4, 2, 64}), 16000);
  EXPECT_EQ(window_tokens({2, 65536, 32, 8, 128}), 65536);
  EXPECT_EQ(window_tokens({2, 8192, 32, 8, 128, {.rank = 1, .size = 4}}), 4096) << "a chunk of a shared sequence";
  EXPECT_EQ(documents_per_backward({2, 8192, 32, 8, 128}), 32);
  EXPECT_EQ(documents_per_backward({2, 65536, 32, 8, 128}), 128);
}

// Every tile of every head has one block. Blocks wait only for blocks that start earlier: those of the tiles before and
// of the heads before.
TEST(TileOfBlockTest, CoversEveryTileOfEveryHeadInOrder) {
  for (const int heads : {1, 2, 3, 8, 12}) {
    for (const int tiles : {1, 2, 7}) {
      for (int heads_at_once = 1; heads_at_once <= heads; heads_at_once *= 2) {
        std::vector<std::vector<int>> block_of(static_cast<size_t>(tiles),
                                               std::vector<int>(static_cast<size_t>(heads), -1));
        for (int i = 0; i < tiles * heads; ++i) {
          const auto [tile, head] = tile_of_block(i, tiles, heads_at_once, heads);
          ASSERT_LT(tile, tiles);
          ASSERT_LT(head, heads);
          int& block = block_of[static_cast<size_t>(tile)][static_cast<size_t>(head)];
          ASSERT_EQ(block, -1);
          block = i;
          const auto started = [&](int t, int h) {
            return t < 0 || h < 0 || block_of[static_cast<size_t>(t)][static_cast<size_t>(h)] >= 0;
          };
          ASSERT_TRUE(started(tile - 1, head) && started(tile, head - 1));
        }
      }
    }
  }
}

TEST(HeadsInCacheTest, IsThePowerOfTwoThatFits) {
  EXPECT_EQ(heads_in_cache(1000, 8000, 64), 8);
  EXPECT_EQ(heads_in_cache(1001, 8000, 64), 4);
  EXPECT_EQ(heads_in_cache(9000, 8000, 64), 1);
  EXPECT_EQ(heads_in_cache(1, 8000, 12), 8);
  const SdpaShape shape{1, 8192, 32, 8, 128};
  EXPECT_EQ(flash_forward_heads(shape, 8192), 4 * 2);
  EXPECT_EQ(flash_forward_heads(shape, 128), 32);
  EXPECT_EQ(flash_backward_heads(shape, 8192), 4);
  EXPECT_EQ(flash_backward_heads(shape, 128), 32);
}

}  // namespace
}  // namespace octavo::flash_documents_test
