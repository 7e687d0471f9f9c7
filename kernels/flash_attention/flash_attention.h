// FlashAttention-3 (Shah et al., arXiv 2407.08608) on Hopper GPUs, for causal sequences and chunks of sequences, and
// for documents within them (kernels/flash_attention/flash_documents.h). FlashAttention takes less time and energy than
// cuDNN (docs/benchmarks/attention.md). The kernels are compiled from FlashAttention's sources, which scripts/setup.sh
// downloads. A build without them uses cuDNN for all attention, and refuses documents.
#pragma once

#include "build_config.h"
#include "core/stream.h"
#include "kernels/attention_shapes/sdpa_geometry.h"

namespace octavo {

// Returns whether FlashAttention has kernels for this head size.
constexpr bool flash_has_kernels_for(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }
// Returns whether FlashAttention computes the attention of this shape on GPUs. A program without CUDA assumes
// FlashAttention in its plans.
inline bool flash_attends(const SdpaShape& shape) {
  return (kHasFlashAttention || !kHasCuda) && flash_has_kernels_for(shape.head_dim);
}

// Buffers that a pass needs in addition to its tensors. The constructor places them in `memory`. If `memory` is null,
// it only computes their sizes.
struct FlashForwardTensors {
  explicit FlashForwardTensors(void* memory);

  Tensor tiles;  // [1] int32: index of the next tile to compute.
  int64_t bytes = 0;
};
// Sizes of backward's buffers, per head.
struct FlashBackwardSize {
  // Number of queries and of keys of all sequences, where each sequence is rounded up to whole tiles.
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  // Number of counters per head: tiles of the longest sequence times the number of sequences.
  int64_t query_turns = 0;
  int64_t key_turns = 0;
};
// Returns the size for sequences of equal length whose queries attend to `keys` keys.
FlashBackwardSize flash_backward_size(const SdpaShape& shape, int64_t keys);

struct FlashBackwardTensors {
  // Reads only the numbers of heads and the head size from `shape`.
  FlashBackwardTensors(const SdpaShape& shape, const FlashBackwardSize& size, void* memory);

  // [num_heads * query_rows, head_dim] float32: accumulates over the keys.
  Tensor d_q;
  Tensor d;  // [num_heads * query_rows] float32: D of kernels/attention/sdpa.h
  // [num_heads * query_rows] float32: log-sum-exp in base 2.
  Tensor lse;
  // [query_turns, num_heads] int32: counters by which the deterministic kernels add to d_q in a fixed order.
  Tensor turns_of_queries;
  // The bytes of all following tensors, which are adjacent and must be zero when backward starts.
  Tensor zeros;  // [any] uint8
  // [num_kv_heads * key_rows, head_dim] float32: sums over the query heads.
  Tensor d_k, d_v;
  // [key_turns, num_kv_heads] int32: counters by which the deterministic kernels add to d_k and to d_v in a fixed
  // order.
  Tensor turns_of_keys;
  Tensor turns_of_values;
  int64_t bytes = 0;
};

// Returns the size of the scratch that forward or backward needs, whichever is larger, for sequences whose queries
// attend to `keys` keys.
int64_t flash_workspace_bytes(const SdpaShape& shape, int64_t keys);

namespace cuda {
// Queue attention without documents in bfloat16. The stream's workspace is used from byte `begin` on.
// Requires: `pointers` has the address of every tensor of the pass.
void flash_forward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
void flash_backward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
}  // namespace cuda

}  // namespace octavo
