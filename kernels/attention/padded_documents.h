// Attention within documents (kernels/attention/sdpa.h) by kernels for batches of sequences of one length, on GPUs. A
// document's run of n tokens on this rank, m of its document before it, is attention of n queries over m + n keys with
// the causal mask aligned at the last key: query i sees the keys 0 to m + i. Runs are copied into batches of sequences,
// with zeros after each, and attention is told how many queries and keys each sequence has.
//
//   Runs of no more keys than a piece has tokens, which are all runs of whole sequences, go into square batches. A
// square batch of level i holds 2^i `rows` sequences of ceil(piece / 2^i) tokens, 2 at least, where `rows` pieces are
// about 8,192 tokens. So batches of all levels are of one size, which bounds the memory they take, and few shapes are
// enough for documents of any number and length. Documents come most keys first. So of the batches of a level all but
// the last are full of documents that are longer than half its sequences, and n tokens take at most 2 n / (rows piece)
// batches and one a level (more where documents have fewer than 32 tokens).
//   Of runs of more keys, which begin before their piece, there is at most one a piece, the first. Each is a batch of
// its own, of a piece's queries over ceil(whole / 2^i) keys: log2 of the pieces more shapes, and copies of at most all
// keys of one sequence and a piece's queries.
//   The gradients of keys of shared sequences are added up. Runs of one piece have no key in common, so no element is a
// sum of more than the rank's two pieces, and the order does not matter.
//
// Compared: a square over all m + n tokens with queries of zero needs no other kernels, but N times the arithmetic
// where a document fills a sequence that N ranks share; two attentions a run, over the m keys without a mask and over
// the n, put together by their lse, need a kernel more and round what they make twice.
#pragma once

#include "kernels/attention/sdpa.h"

namespace octavo {

// The documents [first, first + count) of the list, in sequences of shape.seq_len queries and `keys` keys.
struct PaddedBatch {
  SdpaShape shape;
  int64_t keys = 0;
  bool packed = true;  // keys and values are copied with their queries, as rows of qkv
  int64_t first = 0;
  int64_t count = 0;
};
// Levels of batches of a micro-batch of `shape`, those of most keys first.
int64_t num_padded_levels(const SdpaShape& shape);
PaddedBatch empty_padded_batch(const SdpaShape& shape, int64_t level);
// Returns the batch that begins with document `first`.
PaddedBatch padded_batch(const Documents& documents, int64_t first, const SdpaShape& shape);

// Where the tensors of a batch lie while attention runs; in `memory`, or nowhere where that is null.
struct PaddedTensors {
  PaddedTensors(const PaddedBatch& batch, DType dtype, void* memory);

  Tensor query_lengths, key_lengths;  // [batch] int32: of each sequence without its padding; one tensor where packed
  Tensor qkv, d_qkv;                  // [batch * seq_len, qkv_width], or the queries alone, [.., out_width]
  Tensor out, d_out;                  // [batch * seq_len, out_width]
  Tensor kv, d_kv;                    // [batch * keys, kv_width] where not packed
  Tensor lse;                         // [batch, num_heads, seq_len] float32
  int64_t bytes = 0;                  // of all of them, a multiple of 256
};

// Maps the padded sequences of a batch to the rows that they are copies of: sequence i has the queries of document i of
// the batch, or all keys that these queries attend to. Valid on the host and on the device, depending on where
// `documents` lies.
struct PaddedRows {
  enum class Of : uint8_t { kQueries, kKeys };

  // Returns the number of rows of sequence i before its padding. 0 if the sequence holds no document.
  constexpr int64_t length(int64_t i) const {
    if (i >= count) return 0;
    return of == Of::kQueries ? documents[i].length : documents[i].keys();
  }
  // For the first row of sequence i, these return the row it is a copy of, its element of lse (queries only), and the
  // rank's piece that it lies in. The other rows follow. Require i < count.
  constexpr int64_t first_row(int64_t i) const {
    return of == Of::kQueries ? documents[i].begin : shape.first_key(documents[i]);
  }
  constexpr int64_t first_lse(int64_t i, int64_t head) const { return shape.first_lse(documents[i], head); }
  constexpr int64_t piece(int64_t i) const { return shape.piece_of(documents[i]); }

  SdpaShape shape;
  const Document* documents = nullptr;
  int64_t count = 0;
  int64_t seq_len = 0;  // of the padded sequences
  Of of = Of::kQueries;
};

// What runs batches: copies, as padded_documents.cu makes them, and attention of a batch.
class PaddedOps {
 public:
  virtual ~PaddedOps() = default;

  // lengths[i] = map.length(i), [batch] int32, batch >= map.count; 1 of a sequence that holds no document, on which
  // attention can then run as on any other.
  virtual void padded_lengths(const Tensor& lengths, const PaddedRows& map) = 0;
  // padded = the rows of the documents, zeros after each. padded [batch * map.seq_len, width], rows [any, width or
  // more], of which the first columns are meant; bfloat16, rows of whole multiples of 16 bytes.
  virtual void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) = 0;
  // rows = those of the documents in padded; other rows and columns stay.
  virtual void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) = 0;
  // rows += them, of the documents in this piece of the rank's, no two of which have a row in common.
  virtual void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t piece) = 0;
  // lse of kernels/attention/sdpa.h, padded [batch, heads, map.seq_len], float32; map is of queries.
  virtual void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) = 0;
  virtual void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) = 0;
  // out and lse = of qkv and kv; d_qkv and d_kv = of d_out, out, lse, qkv and kv. The workspace is in use up to
  // tensors.bytes.
  virtual void forward(const PaddedBatch& batch, const PaddedTensors& tensors) = 0;
  virtual void backward(const PaddedBatch& batch, const PaddedTensors& tensors) = 0;
};

// Within args.documents, of which the device's list is what `ops` read; in the stream's workspace.
void forward_within_documents(const SdpaForward& args, PaddedOps& ops, Stream& stream);
void backward_within_documents(const SdpaBackward& args, PaddedOps& ops, Stream& stream);

namespace cuda {

// The copies of PaddedOps, queued on `stream`; `map` has documents on the device.
void padded_lengths(const Tensor& lengths, const PaddedRows& map, Stream& stream);
void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map, Stream& stream);
void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, Stream& stream);
void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t piece, Stream& stream);
void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map, Stream& stream);
void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map, Stream& stream);

}  // namespace cuda
}  // namespace octavo
