#include "kernels/flash_attention/flash_attention.h"

#include <algorithm>

#include "core/workspace_parts.h"
#include "kernels/flash_attention/tiles.h"

namespace octavo {

FlashForwardTensors::FlashForwardTensors(void* memory) {
  WorkspaceParts parts(memory);
  tiles = parts.take(DType::kInt32, {1});
  bytes = parts.bytes();
}

FlashBackwardSize flash_backward_size(const SdpaShape& shape, int64_t keys) {
  const int64_t query_tile = flash_query_tile(shape.head_dim);
  const int64_t query_tiles = shape.batch * num_tiles(shape.seq_len, query_tile);
  const int64_t key_tiles = shape.batch * num_tiles(keys, kFlashKeyTile);
  return {.query_rows = query_tiles * query_tile,
          .key_rows = key_tiles * kFlashKeyTile,
          .query_turns = query_tiles,
          .key_turns = key_tiles};
}

FlashBackwardTensors::FlashBackwardTensors(const SdpaShape& s, const FlashBackwardSize& size, void* memory) {
  WorkspaceParts parts(memory);
  d_q = parts.take(DType::kFloat32, {s.num_heads * size.query_rows, s.head_dim});
  d = parts.take(DType::kFloat32, {s.num_heads * size.query_rows});
  lse = parts.take(DType::kFloat32, {s.num_heads * size.query_rows});
  turns_of_queries = parts.take(DType::kInt32, {size.query_turns, s.num_heads});
  const int64_t begin = parts.bytes();
  d_k = parts.take(DType::kFloat32, {s.num_kv_heads * size.key_rows, s.head_dim});
  d_v = parts.take(DType::kFloat32, {s.num_kv_heads * size.key_rows, s.head_dim});
  turns_of_keys = parts.take(DType::kInt32, {size.key_turns, s.num_kv_heads});
  turns_of_values = parts.take(DType::kInt32, {size.key_turns, s.num_kv_heads});
  bytes = parts.bytes();
  zeros = Tensor(d_k.raw(), DType::kUInt8, {bytes - begin});
}

int64_t flash_workspace_bytes(const SdpaShape& shape, int64_t keys) {
  return std::max(FlashForwardTensors(nullptr).bytes,
                  FlashBackwardTensors(shape, flash_backward_size(shape, keys), nullptr).bytes);
}

}  // namespace octavo
