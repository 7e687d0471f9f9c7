#include "kernels/attention/flash_attention.h"

#include <algorithm>

#include "kernels/attention/flash_tiles.h"
#include "kernels/attention/workspace_parts.h"

namespace octavo {

namespace {

constexpr int64_t tiles(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

}  // namespace

FlashForwardTensors::FlashForwardTensors(void* memory) {
  WorkspaceParts parts(memory);
  tiles = parts.take(DType::kInt32, {1});
  bytes = parts.bytes();
}

FlashBackwardTensors::FlashBackwardTensors(const SdpaShape& s, int64_t keys, void* memory) {
  const int64_t query_tiles = tiles(s.seq_len, flash_query_tile(s.head_dim));
  const int64_t key_tiles = tiles(keys, kFlashKeyTile);
  const int64_t query_rows = query_tiles * flash_query_tile(s.head_dim);
  const int64_t key_rows = key_tiles * kFlashKeyTile;
  WorkspaceParts parts(memory);
  d_q = parts.take(DType::kFloat32, {s.batch, s.num_heads, query_rows * s.head_dim});
  d = parts.take(DType::kFloat32, {s.batch, s.num_heads, query_rows});
  lse = parts.take(DType::kFloat32, {s.batch, s.num_heads, query_rows});
  turns_of_queries = parts.take(DType::kInt32, {query_tiles, s.batch, s.num_heads});
  const int64_t begin = parts.bytes();
  d_k = parts.take(DType::kFloat32, {s.batch, s.num_kv_heads, key_rows * s.head_dim});
  d_v = parts.take(DType::kFloat32, {s.batch, s.num_kv_heads, key_rows * s.head_dim});
  turns_of_keys = parts.take(DType::kInt32, {key_tiles, s.batch, s.num_kv_heads});
  turns_of_values = parts.take(DType::kInt32, {key_tiles, s.batch, s.num_kv_heads});
  bytes = parts.bytes();
  zeros = Tensor(d_k.raw(), DType::kUInt8, {bytes - begin});
}

int64_t flash_workspace_bytes(const SdpaShape& shape, int64_t keys) {
  return std::max(FlashForwardTensors(nullptr).bytes, FlashBackwardTensors(shape, keys, nullptr).bytes);
}

}  // namespace octavo
