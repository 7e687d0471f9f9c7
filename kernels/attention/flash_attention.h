// FlashAttention-3 (Shah et al., arXiv 2407.08608) on Hopper GPUs, for causal sequences and chunks of sequences without
// padding. It takes less time and energy than cuDNN (docs/benchmarks/2026-11-23-attention.md). The kernels are compiled
// from FlashAttention's sources, which scripts/setup.sh downloads. A build without them uses cuDNN for all attention.
#pragma once

#include "build_config.h"
#include "kernels/attention/sdpa_geometry.h"

namespace octavo {

// Returns whether FlashAttention computes the attention of this shape on GPUs. Multi-head attention without shared keys
// uses cuDNN, because the kernels here sum the gradients of keys over query heads. A program without CUDA assumes
// FlashAttention in its plans.
inline bool flash_attends(const SdpaShape& shape) {
  return (kHasFlashAttention || !kHasCuda) && shape.num_kv_heads < shape.num_heads &&
         (shape.head_dim == 64 || shape.head_dim == 128);
}

// Buffers that a pass needs in addition to its tensors. The constructor places them in `memory`. If `memory` is null,
// it only computes their sizes. "rows" is the number of queries or keys per sequence, rounded up to whole tiles.
struct FlashForwardTensors {
  explicit FlashForwardTensors(void* memory);

  Tensor tiles;  // [1] int32: index of the next tile to compute.
  int64_t bytes = 0;
};
struct FlashBackwardTensors {
  FlashBackwardTensors(const SdpaShape& shape, int64_t keys, void* memory);

  // [batch, num_heads, rows * head_dim] float32: accumulates over the keys.
  Tensor d_q;
  Tensor d;  // [batch, num_heads, rows] float32: D of kernels/attention/sdpa.h
  // [batch, num_heads, rows] float32: log-sum-exp in base 2.
  Tensor lse;
  // [tiles, batch, num_heads] int32: counters by which the deterministic kernels add to d_q in a fixed order.
  Tensor turns_of_queries;
  // The following tensors are adjacent and must be zero at the start. `zeros` covers all of them as bytes.
  Tensor zeros;  // [any] uint8
  // [batch, num_kv_heads, rows * head_dim] float32: sums over the query heads.
  Tensor d_k, d_v;
  // [tiles, batch, num_kv_heads] int32: counters by which the deterministic kernels add to d_k and to d_v in a fixed
  // order.
  Tensor turns_of_keys;
  Tensor turns_of_values;
  int64_t bytes = 0;
};

// Returns the size of the scratch that forward or backward needs, whichever is larger, for sequences whose queries
// attend to `keys` keys.
int64_t flash_workspace_bytes(const SdpaShape& shape, int64_t keys);

namespace cuda {
// Implementations of attend_forward() and attend_backward() (kernels/attention/attend.h) for bfloat16.
void flash_forward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
void flash_backward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
}  // namespace cuda

}  // namespace octavo
