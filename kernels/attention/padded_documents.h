// Attention within documents by kernels for sequences of one length, on GPUs: the documents of a micro-batch are copied
// into batches of sequences as long as the longest document among them, rounded up, with zeros behind each.
//
// A batch of level i holds 2^i `rows` sequences of ceil(seq_len / 2^i) tokens, 2 at least, where `rows` sequences of
// seq_len are about 8,192 tokens. So batches of all levels are of one size, which bounds the memory they take, and few
// shapes are enough for documents of any number and length. Documents come longest first; so of the batches of a level
// all but the last are full of documents that are longer than half its sequences, and n tokens take at most 2 n / (rows
// seq_len) batches and one a level (more where documents have fewer than 32 tokens).
#pragma once

#include "kernels/attention/context_sdpa.h"

namespace octavo {

int64_t num_padded_levels(const SdpaShape& shape);
SdpaShape padded_shape(const SdpaShape& shape, int64_t level);

// The documents [first, first + count) of the list, in sequences of `shape`.
struct PaddedBatch {
  SdpaShape shape;
  int64_t first = 0;
  int64_t count = 0;
};
// The batch that begins with document `first` of a micro-batch of `shape`.
PaddedBatch padded_batch(const Documents& documents, int64_t first, const SdpaShape& shape);

// Where the tensors of a batch of documents lie while attention runs; in `memory`, or nowhere where that is null.
struct PaddedTensors {
  PaddedTensors(const SdpaShape& shape, DType dtype, void* memory);

  Tensor lengths;     // [batch] int32: of each sequence without its padding
  Tensor qkv, d_qkv;  // [batch * seq_len, qkv_width]
  Tensor out, d_out;  // [batch * seq_len, out_width]
  Tensor lse;         // [batch, num_heads, seq_len] float32
  int64_t bytes = 0;  // of all of them, a multiple of 256
};

// Which rows the padded sequences of a batch are copies of: sequence i of those of its document i, its queries or,
// where a rank shares its sequences, all keys that they attend to. The same on the host and on the device, wherever the
// documents lie.
struct PaddedRows {
  enum class Of : uint8_t { kQueries, kKeys };

  // How many rows sequence i has before its padding: none where it holds no document.
  constexpr int64_t length(int64_t i) const {
    if (i >= count) return 0;
    return of == Of::kQueries ? documents[i].length : documents[i].keys();
  }
  // The row that the first of them is a copy of, the others follow; its element of lse, where they are queries; and the
  // rank's piece that they lie in. i < count.
  constexpr int64_t first_row(int64_t i) const {
    return of == Of::kQueries ? documents[i].begin : shape.first_key(documents[i]);
  }
  constexpr int64_t first_lse(int64_t i, int64_t head) const { return shape.first_lse(documents[i], head); }
  constexpr int64_t piece(int64_t i) const { return shape.piece_of(documents[i]); }

  ContextSdpaShape shape;
  const Document* documents = nullptr;
  int64_t count = 0;
  int64_t seq_len = 0;  // of the padded sequences
  Of of = Of::kQueries;
};

namespace cuda {

// `map` has documents on the device; all queued on `stream`.

// lengths[i] = map.length(i), [batch] int32, batch >= map.count; 1 of a sequence that holds no document, on which
// attention can then run as on any other.
void padded_lengths(const Tensor& lengths, const PaddedRows& map, Stream& stream);
// padded = the rows of the documents, zeros behind each. padded [batch * map.seq_len, width], rows [any, width or
// more], of which the first columns are meant; bfloat16, rows of whole multiples of 16 bytes.
void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map, Stream& stream);
// rows = those of the documents in padded; other rows and columns stay.
void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, Stream& stream);
// rows += them, of the documents in this piece of the rank's, no two of which have a row in common.
void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t piece, Stream& stream);
// lse of kernels/attention/context_sdpa.h, padded [batch, heads, map.seq_len], float32; map is of queries.
void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map, Stream& stream);
void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map, Stream& stream);

}  // namespace cuda
}  // namespace octavo
