// The last step of FlashAttention-3's backward: rounds the gradients of queries, keys and values, which backward has
// summed in float32, and rotates them back (kernels/attention/rope.h). A rotated gradient has the bits that rope()
// would compute from the rounded gradient.
//
// Backward sums in the order of the tensor cores' registers. The sums of a head are in groups of 64 rows and, within a
// group, in blocks of 8 columns, [64-row group, column / 8, 128 threads, 4]. Thread t has the rows r = t / 32 * 16 + t
// % 32 / 4 and r + 8, of each the columns 2 * (t % 4) and 2 * (t % 4) + 1.
#pragma once

#include "core/stream.h"

namespace octavo::cuda {

// The gradients of the heads of q, k or v.
struct FlashGradient {
  const void* sums =
      nullptr;               // float32. Sequences, or the whole launch within documents, have [heads, rows, head_dim].
  void* out = nullptr;       // bfloat16, = the gradient of the first head.
  int64_t out_sequence = 0;  // Distances in elements between sequences and between tokens of `out`.
  int64_t out_token = 0;
  int64_t heads = 0;
  int64_t rows = 0;    // Number of rows of sums per head.
  int64_t tokens = 0;  // Number of tokens of a sequence, or of the longest document.
  int64_t tile = 0;    // Document i begins at row (begin[i] + i * tile) / tile * tile of the sums.
  // [documents] int32: first row of `out` and number of rows of each document. Null without documents.
  const int* begin = nullptr;
  const int* length = nullptr;
  float scale = 1;  // Factor of the sums.
};

struct FlashGradients {
  FlashGradient q, k, v;
  int64_t head_dim = 0;          // 64 or 128
  int64_t sequences = 0;         // Number of sequences or documents.
  const float* table = nullptr;  // Optional [table_rows, head_dim], from rope_table. Null means that nothing rotates.
  int64_t table_rows = 1;        // Row t of a gradient has the position t mod table_rows.
  float* amax = nullptr;         // Optional [1]: = max(itself, amax of the gradients).
};
void flash_gradients(const FlashGradients& args, Stream& stream);

}  // namespace octavo::cuda
