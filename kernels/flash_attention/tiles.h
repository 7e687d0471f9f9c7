// Tile sizes of FlashAttention's causal kernels, as its authors chose them, and the order of the tiles of a document.
#pragma once

#include <cstdint>

namespace octavo {

// Return the number of query rows per tile of forward and of backward.
constexpr int flash_forward_tile(int64_t head_dim) { return head_dim == 64 ? 192 : 128; }
constexpr int flash_query_tile(int64_t head_dim) { return head_dim == 64 ? 128 : 64; }
// Number of key rows per tile of backward.
inline constexpr int kFlashKeyTile = 128;

// Returns the number of tiles that hold `rows` rows.
constexpr int64_t num_tiles(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

// Returns the largest number of heads, a power of two up to `most`, whose data fits into `cache_bytes`. At least 1.
constexpr int64_t heads_in_cache(int64_t bytes_per_head, int64_t cache_bytes, int64_t most) {
  int64_t heads = 1;
  while (2 * heads <= most && 2 * heads * bytes_per_head <= cache_bytes) heads *= 2;
  return heads;
}

// A tile of keys and a query head of a document, which one block of threads computes.
struct TileOfHead {
  int tile = 0;
  int head = 0;
};
// Returns the work of a document's i-th block. The blocks are ordered by group of `heads_at_once` heads, then by tile,
// then by head.
constexpr TileOfHead tile_of_block(int i, int num_tiles, int heads_at_once, int num_heads) {
  const int group = i / (heads_at_once * num_tiles);
  const int in_group = i - group * heads_at_once * num_tiles;
  const int heads_after = num_heads - group * heads_at_once;
  const int heads = heads_at_once < heads_after ? heads_at_once : heads_after;
  const int tile = in_group / heads;
  return {.tile = tile, .head = group * heads_at_once + in_group - tile * heads};
}

}  // namespace octavo
