// Attention within documents (kernels/attention/sdpa.h) on GPUs with cuDNN, for heads that FlashAttention has no
// kernels for (flash_attends in kernels/flash_attention/flash_attention.h).
//
// A document's run of n tokens on this rank (kernels/attention_shapes/documents.h), preceded by m tokens of the
// document, is an attention of n queries over m + n keys whose causal mask is aligned at the last key: query i attends
// to keys 0 to m + i. Runs are copied into batches of sequences and padded with zeros. The kernels receive the number
// of queries and keys of each sequence.
//
// Runs whose keys fit into one chunk, which includes all runs of whole sequences, go into square batches, whose
// sequences have as many queries as keys. A square batch of level i holds rows * 2^i sequences of ceil(chunk / 2^i)
// tokens, at least 2. `rows` is the number of chunks that together have about 8,192 tokens. Batches of all levels have
// equal size, which bounds their memory, and a few shapes are enough for documents of any number and length. A batch
// holds consecutive documents, and has the level that holds most of them.
//
// A run with more keys than one chunk belongs to a document that begins before the chunk of the run. Only the first run
// of a chunk can be of this kind. It gets its own batch, which has the queries of one chunk and ceil(whole / 2^i) keys,
// where `whole` is the length of the whole sequence. Such batches add log2(chunks) shapes, and each copies at most all
// keys of one sequence and the queries of one chunk.
//
// The gradients of keys of shared sequences are summed. Runs of one chunk have no key in common, so every element is
// the sum of at most one term for each of the rank's two chunks, and the order of addition does not matter.
//
// Two alternatives were rejected. A square batch over all m + n tokens, with zeros as the queries of the first m, needs
// no other kernels, but takes N times the arithmetic if a document fills a sequence that N ranks share. Two attentions
// per run, one over the m keys without a mask and one over the n keys, merged by their log-sum-exp, need one more
// kernel and round the values they merge twice.
#pragma once

#include "kernels/attention/sdpa.h"

namespace octavo {

// Batch of documents [first, first + count) of the list, as sequences of shape.seq_len queries and `keys` keys.
struct PaddedBatch {
  SdpaShape shape;
  int64_t keys = 0;
  // Keys and values are copied together with their queries, as rows of qkv.
  bool packed = true;
  int64_t first = 0;
  int64_t count = 0;
};
// Returns the number of levels of the batches of a micro-batch of `shape`. Level 0 has the most keys.
int64_t num_padded_levels(const SdpaShape& shape);
// Returns a batch that has the shape of this level and no documents.
PaddedBatch empty_padded_batch(const SdpaShape& shape, int64_t level);
// Returns the batch that begins with document `first`.
PaddedBatch padded_batch(const Documents& documents, int64_t first, const SdpaShape& shape);

// Tensors of a batch during attention. The constructor places them in `memory`. If `memory` is null, it only computes
// their sizes.
struct PaddedTensors {
  PaddedTensors(const PaddedBatch& batch, DType dtype, void* memory);

  // [batch] int32: lengths of the sequences without padding. The two are one tensor if packed.
  Tensor query_lengths, key_lengths;
  // [batch * seq_len, qkv_width], or only the queries [batch * seq_len, out_width] if not packed.
  Tensor qkv, d_qkv;
  Tensor out, d_out;  // [batch * seq_len, out_width]
  Tensor kv, d_kv;    // [batch * keys, kv_width]. Only if not packed.
  Tensor lse;         // [batch, num_heads, seq_len] float32
  // Total size of the tensors, a multiple of 256.
  int64_t bytes = 0;
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
  // Returns the row that the first row of sequence i is a copy of. The rows of the sequence are copies of consecutive
  // rows. Requires i < count.
  constexpr int64_t first_row(int64_t i) const {
    return of == Of::kQueries ? documents[i].begin : shape.first_key(documents[i]);
  }
  // Returns the index in lse of the first row of sequence i. Only for queries, with i < count.
  constexpr int64_t first_lse(int64_t i, int64_t head) const { return shape.first_lse(documents[i], head); }
  // Returns the index, among the rank's chunks of the sequence, of the chunk that contains the queries of sequence i.
  // Requires i < count.
  constexpr int64_t chunk(int64_t i) const { return shape.chunk_of(documents[i]); }

  SdpaShape shape;
  const Document* documents = nullptr;
  int64_t count = 0;
  int64_t seq_len = 0;  // Length of the padded sequences.
  Of of = Of::kQueries;
};

// Operations that run the batches: the copies of padded_documents.cu and the attention of a batch.
class PaddedOps {
 public:
  virtual ~PaddedOps() = default;

  // Sets lengths[i] = map.length(i), [batch] int32, batch >= map.count. Sequences without a document get length 1, so
  // that attention can run on them as on any other.
  virtual void padded_lengths(const Tensor& lengths, const PaddedRows& map) = 0;
  // Copies the rows of the documents into `padded` [batch * map.seq_len, width], with zeros after each document. rows
  // is [any, width or more], of which the first `width` columns are copied. Bfloat16; the row size is a multiple of 16
  // bytes.
  virtual void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) = 0;
  // Copies the rows of the documents from `padded` back to `rows`. Other rows and columns keep their values.
  virtual void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) = 0;
  // Adds the padded rows of the documents in the given chunk of this rank to `rows`. No two of these documents may have
  // a row in common.
  virtual void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t chunk) = 0;
  // Copy lse (kernels/attention/sdpa.h), float32, to and from its padded form [batch, heads, map.seq_len]. `map` must
  // be of queries.
  virtual void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) = 0;
  virtual void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) = 0;
  // Compute out and lse from qkv and kv, and d_qkv and d_kv from d_out, out, lse, qkv and kv. The workspace is in use
  // up to tensors.bytes.
  virtual void forward(const PaddedBatch& batch, const PaddedTensors& tensors) = 0;
  virtual void backward(const PaddedBatch& batch, const PaddedTensors& tensors) = 0;
};

// Run attention within args.documents in the stream's workspace. `ops` read the device's list of documents.
void forward_within_documents(const SdpaForward& args, PaddedOps& ops, Stream& stream);
void backward_within_documents(const SdpaBackward& args, PaddedOps& ops, Stream& stream);

namespace cuda {

// Implementations of the copies of PaddedOps, queued on `stream`. The documents of `map` must be on the device.
void padded_lengths(const Tensor& lengths, const PaddedRows& map, Stream& stream);
void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map, Stream& stream);
void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, Stream& stream);
void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t chunk, Stream& stream);
void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map, Stream& stream);
void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map, Stream& stream);

}  // namespace cuda
}  // namespace octavo
