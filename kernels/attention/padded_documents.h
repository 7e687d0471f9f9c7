// Attention within documents by kernels for sequences of one length, on GPUs: the documents of a micro-batch are copied
// into batches of sequences as long as the longest document among them, rounded up, with zeros behind each.
//
// A batch of level i holds 2^i `rows` sequences of ceil(seq_len / 2^i) tokens, 2 at least, where `rows` sequences of
// seq_len are about 8,192 tokens. So batches of all levels are of one size, which bounds the memory they take, and few
// shapes are enough for documents of any number and length. Documents come longest first; so of the batches of a level
// all but the last are full of documents that are longer than half its sequences, and n tokens take at most 2 n / (rows
// seq_len) batches and one a level (more where documents have fewer than 32 tokens).
#pragma once

#include "kernels/attention/sdpa.h"

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

namespace cuda {

// documents [count, 2] int32, of a batch; all queued on `stream`.

// lengths[i] = that of document i; 1 of a sequence that holds none, which attention can then run on as on any other.
// lengths [batch], batch >= count.
void padded_lengths(const Tensor& lengths, const Tensor& documents, Stream& stream);
// padded = the rows of the documents, zeros behind each. rows [tokens, width], padded [batch * seq_len, width],
// bfloat16, rows of whole multiples of 16 bytes.
void pad_rows(const Tensor& padded, const Tensor& rows, const Tensor& documents, int64_t seq_len, Stream& stream);
// rows = those of the documents in padded; other rows stay.
void unpad_rows(const Tensor& rows, const Tensor& padded, const Tensor& documents, int64_t seq_len, Stream& stream);
// The same of lse [sequences, heads, seq_len] and padded [batch, heads, its seq_len], float32.
void pad_lse(const Tensor& padded, const Tensor& lse, const Tensor& documents, Stream& stream);
void unpad_lse(const Tensor& lse, const Tensor& padded, const Tensor& documents, Stream& stream);

}  // namespace cuda
}  // namespace octavo
