// Tile sizes of FlashAttention's backward pass for causal attention, as its authors chose them. The kernel launch and
// the layout of the scratch both need them.
#pragma once

#include <cstdint>

namespace octavo {

// Returns the number of query rows per tile.
constexpr int flash_query_tile(int64_t head_dim) { return head_dim == 64 ? 128 : 64; }
// Number of key rows per tile.
inline constexpr int kFlashKeyTile = 128;

}  // namespace octavo
