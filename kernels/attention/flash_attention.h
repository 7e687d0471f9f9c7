// FlashAttention-3 (Shah et al., arXiv 2407.08608) on Hopper GPUs, of causal sequences and pieces of them without
// padding, in place of cuDNN: it takes less time and energy (docs/benchmarks/2026-11-23-attention.md). Its kernels are
// compiled from its own sources, which scripts/setup.sh fetches; a build without them leaves all attention to cuDNN.
#pragma once

#include "build_config.h"
#include "kernels/attention/sdpa_geometry.h"

namespace octavo {

// Whether it is what attends on GPUs. Heads that share no keys are left to cuDNN: the kernels here add up the gradients
// of keys over query heads. A program without CUDA plans for one that has everything.
inline bool flash_attends(const SdpaShape& shape) {
  return (kHasFlashAttention || !kHasCuda) && shape.num_kv_heads < shape.num_heads &&
         (shape.head_dim == 64 || shape.head_dim == 128);
}

// Where what a pass needs beside its tensors lies; in `memory`, or nowhere where that is null. Rows are those of the
// sequences' queries or keys, rounded up to whole tiles.
struct FlashForwardTensors {
  explicit FlashForwardTensors(void* memory);

  Tensor tiles;  // [1] int32: the next tile
  int64_t bytes = 0;
};
struct FlashBackwardTensors {
  FlashBackwardTensors(const SdpaShape& shape, int64_t keys, void* memory);

  Tensor d_q;               // [batch, num_heads, rows * head_dim] float32: sums over the keys
  Tensor d;                 // [batch, num_heads, rows] float32: D of kernels/attention/sdpa.h
  Tensor lse;               // [batch, num_heads, rows] float32: in base 2
  Tensor turns_of_queries;  // [tiles, batch, num_heads] int32: whose turn it is to add to d_q, where the order counts
  // That begin as zeros, one behind the other:
  Tensor zeros;          // [any] uint8: all of them
  Tensor d_k, d_v;       // [batch, num_kv_heads, rows * head_dim] float32: sums over the query heads
  Tensor turns_of_keys;  // [tiles, batch, num_kv_heads] int32, of d_k
  Tensor turns_of_values;
  int64_t bytes = 0;
};

// Scratch of the larger pass, of sequences whose queries see `keys` keys.
int64_t flash_workspace_bytes(const SdpaShape& shape, int64_t keys);

namespace cuda {
// As in kernels/attention/attend.h; bfloat16.
void flash_forward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
void flash_backward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream);
}  // namespace cuda

}  // namespace octavo
