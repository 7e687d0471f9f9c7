// Attention within documents (kernels/attention/sdpa.h) with the kernels of FlashAttention-3 for sequences of different
// lengths, which read and write the tokens in place.
//
// A document's run of n tokens on this rank (kernels/attention_shapes/documents.h), preceded by m tokens of the
// document, is an attention of n queries over m + n keys whose causal mask is aligned at the last key: query i attends
// to keys 0 to m + i. A launch computes consecutive runs of one window. A window is a chunk of a shared sequence, or as
// many whole sequences as have about 16,384 tokens together, which keep a GPU busy.
//
// Backward adds up gradients in float32 tiles of 64 or 128 rows, and no two documents share a tile. So a launch of
// backward has at most 32 documents, or one for every 512 tokens of its window if that is more. This limits its scratch
// whatever the lengths of the documents are. The number of launches of backward is at most the number of windows plus
// one for every 32 documents.
//
// In each window the log-sum-exp has the shape [num_heads, tokens of the window]. Windows follow each other like the
// chunks in kernels/attention_shapes/sdpa_args.h. If a window is a chunk, the layout is the one described there.
//
// The two chunks of a rank may attend to the same keys. The gradients of the late chunk are written first. The
// gradients of the early chunk, which attends to keys of the first half of the sequence only, are written to scratch
// and then added.
#pragma once

#include <vector>

#include "core/workspace_parts.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/tiles.h"

namespace octavo {

// Maximum number of documents that one launch can have in either pass.
inline constexpr int64_t kMostDocumentsPerLaunch = 1024;

// Returns the number of tokens of a window. The last window of whole sequences may have fewer.
int64_t window_tokens(const SdpaShape& shape);
// Returns the maximum number of documents in one launch of backward.
int64_t documents_per_backward(const SdpaShape& shape);

struct DocumentLaunch {
  // The launch has the documents [first, first + count) of the list.
  int64_t first = 0;
  int64_t count = 0;
  int64_t window = 0;       // First token of the window.
  int64_t num_queries = 0;  // Number of tokens in the window.
  int64_t first_key = 0;    // Row of the first key of the first document.
  // Number of rows from the first key of the first document to the last key of the last document. All of them are keys
  // of the documents.
  int64_t num_keys = 0;
  int64_t most_queries = 0;  // Largest number of queries of a document.
  int64_t most_keys = 0;     // Largest number of keys of a document.
  int64_t key_tiles = 0;     // Number of tiles of keys. No two documents share a tile.
};
// Returns the launches of all documents, in the order of the list.
std::vector<DocumentLaunch> document_launches(std::span<const Document> documents, const SdpaShape& shape,
                                              int64_t most_documents);

// Returns the size of the gradients that a launch of backward accumulates.
FlashBackwardSize backward_size(const SdpaShape& shape, const DocumentLaunch& launch);

// Arrays of a launch on the GPU, which schedule_forward() or schedule_backward() writes.
struct DocumentArrays {
  DocumentArrays() = default;
  DocumentArrays(int64_t documents, WorkspaceParts& parts);

  // [documents] int32: first row and number of rows of each document's queries and keys. Rows of queries are counted
  // from the beginning of the window, rows of keys from the launch's first key.
  Tensor query_begin, query_length, key_begin, key_length;
};
struct DocumentForwardTensors {
  explicit DocumentForwardTensors(void* memory);

  DocumentArrays documents;
  // [documents] int32, in descending order of the numbers of keys: index of the document, its number of tiles of
  // queries, and the number of query heads whose keys the L2 cache can hold.
  Tensor order, query_tiles, heads_at_once;
  Tensor next_tile;  // [1] int32: index of the next tile to compute.
  int64_t bytes = 0;
};
struct DocumentBackwardTensors {
  DocumentBackwardTensors(const SdpaShape& shape, DType dtype, void* memory);

  DocumentArrays documents;
  // [tiles, 4] int32, in descending order of the numbers of keys of the documents: for each tile of keys, the index of
  // its document, the index of the document's first tile, the document's number of tiles, and the number of query heads
  // whose queries the L2 cache can hold.
  Tensor tiles;
  // [whole_seq_len / 2, kv_width]: gradients of the keys of an early chunk. Only for shared sequences.
  Tensor early_d_kv;
  int64_t bytes = 0;  // Size of these tensors. The FlashBackwardTensors of a launch follow them in memory.
};

// Returns the size of the scratch that forward or backward needs, whichever is larger.
int64_t document_workspace_bytes(const SdpaShape& shape, DType dtype);

// Return the number of query heads whose tiles are computed together, so that what they read more than once stays in
// the L2 cache: keys and values in forward; queries, output gradients and the float32 gradients of queries in backward.
constexpr int64_t flash_forward_heads(const SdpaShape& shape, int64_t keys) {
  constexpr int64_t kCacheBytes = 8 << 20, kMostHeads = 16;
  const int64_t key_heads = heads_in_cache(keys * 2 * shape.head_dim * 2, kCacheBytes, kMostHeads);
  const int64_t heads = key_heads * (shape.num_heads / shape.num_kv_heads);
  return heads < shape.num_heads ? heads : shape.num_heads;
}
constexpr int64_t flash_backward_heads(const SdpaShape& shape, int64_t queries) {
  constexpr int64_t kCacheBytes = 40 << 20;
  return heads_in_cache(queries * (2 * 2 + 4) * shape.head_dim, kCacheBytes, shape.num_heads);
}

namespace cuda {

// Implementations of sdpa_forward() and sdpa_backward() within documents for bfloat16.
void flash_forward_within_documents(const SdpaForward& args, Stream& stream);
void flash_backward_within_documents(const SdpaBackward& args, Stream& stream);

// Write the arrays of a launch. `documents` is the list of all documents on the GPU (Documents::device).
void schedule_forward(const DocumentForwardTensors& tensors, const DocumentLaunch& launch, const SdpaShape& shape,
                      const Tensor& documents, Stream& stream);
void schedule_backward(const DocumentBackwardTensors& tensors, const DocumentLaunch& launch, const SdpaShape& shape,
                       const Tensor& documents, Stream& stream);

}  // namespace cuda
}  // namespace octavo
