// Tests when the gradients of tokens are exchanged instead of the gradient of the table, and how many bytes this moves.
#include "model/parameters/table_gradient.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace octavo {
namespace {

// Returns the embedding of the 8B model. By default a micro-batch has 2 x 8192 tokens.
TableSpec of_8b(int ranks, int64_t tokens = 16384) {
  return {
      .rows = 128256, .columns = 4096, .slice_rows = (128256 + ranks - 1) / ranks, .tokens = tokens, .ranks = ranks};
}

TEST(TableGradient, MovesTheTokensAndASlice) {
  EXPECT_EQ(of_8b(8).whole_bytes(), 2'101'346'304);
  const int64_t tokens = 16384 * 4096 * 2;
  const int64_t positions = 8 * 16384 * 2 * 4;
  EXPECT_EQ(of_8b(8).moved_bytes(), tokens + positions + 2'101'346'304 / 8);
  EXPECT_LE(of_8b(8).memory_bytes(), of_8b(8).whole_bytes() * 3 / 8);
  // If the ranks do not divide the columns, each rank sends a multiple of 8 columns.
  EXPECT_EQ((TableSpec{.columns = 61, .ranks = 3}.width()), 24);
  EXPECT_EQ((TableSpec{.columns = 64, .ranks = 4}.width()), 16);
}

TEST(TableGradient, IsExchangedWhereThatMovesLess) {
  for (const int ranks : {2, 4, 8, 16, 64}) EXPECT_TRUE(of_8b(ranks).is_better(1)) << ranks;
  EXPECT_FALSE(of_8b(1).is_better(1));
  EXPECT_FALSE(of_8b(128).is_better(1));  // On 128 ranks both exchanges move equally many bytes.
  // Between machines with 8 ranks each, an all-to-all loads each network card 8 times as much.
  EXPECT_FALSE(of_8b(16).is_better(8));
  EXPECT_TRUE(of_8b(64).is_better(8));
  // Every micro-batch uses all rows of a byte vocabulary.
  EXPECT_FALSE((TableSpec{.rows = 272, .columns = 4096, .slice_rows = 34, .tokens = 8192, .ranks = 8}.is_better(1)));
  // With this many tokens, exchanging tokens and exchanging the table move equally many bytes.
  EXPECT_FALSE(of_8b(8, 250'000).is_better(1));
}

TEST(TableGradient, TakesNoMoreMemoryThanTheWhole) {
  for (const int ranks : {2, 3, 5, 7, 8, 61, 64}) {
    for (const int64_t tokens : {1, 17, 1000, 16384, 65536, 100'003, 200'000}) {
      const TableSpec table = of_8b(ranks, tokens);
      if (!table.is_better(1)) continue;
      const int64_t positions = (ranks + 1) * (8 * tokens + 1024);
      const int64_t whole = table.whole_bytes() / table.columns * table.width() * ranks;
      EXPECT_LE(table.memory_bytes(), whole + positions) << ranks << " ranks, " << tokens << " tokens";
      EXPECT_LT(table.moved_bytes(), table.whole_bytes()) << ranks << " ranks, " << tokens << " tokens";
    }
  }
}

TEST(TableGradient, RefusesMemoryThatIsTooSmall) {
  const TableSpec table = of_8b(8);
  char byte = 0;
  EXPECT_THROW(TableGradient(table, {.gradient = Tensor(&byte, DType::kUInt8, {table.memory_bytes() - 1})}), Error);
}

}  // namespace
}  // namespace octavo
