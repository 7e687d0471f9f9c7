// Sizes of the tiles of FlashAttention's backward, as its authors chose them for causal attention. The launch of the
// kernels and the layout of their scratch both need them.
#pragma once

#include <cstdint>

namespace octavo {

// Rows of queries per tile.
constexpr int flash_query_tile(int64_t head_dim) { return head_dim == 64 ? 128 : 64; }
// Rows of keys per tile.
inline constexpr int kFlashKeyTile = 128;

}  // namespace octavo
