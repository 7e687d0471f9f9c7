// Attention within documents of a rank that shares its sequences (kernels/attention/context_sdpa.h), by kernels for
// batches of sequences of one length, on GPUs: what kernels/attention/padded_documents.h does with documents that lie
// wholly in a sequence, of runs whose documents begin before them.
//
// A run of n tokens, m of its document before it, is attention of n queries over m + n keys with the causal mask
// aligned at the bottom right: query i sees the keys 0 to m + i. Queries and keys are copied into sequences of two
// lengths, with zeros behind each, and attention is told how many of either there are.
//   Runs of no more keys than a piece has tokens, which are all that begin in their piece and more, go into the square
// batches that documents of sequences as long as a piece would. Of those of more keys there is at most one a piece, the
// first; each is a batch of its own, of a piece's queries over ceil(whole / 2^i) keys. So a few shapes, more than those
// of a piece's documents by log2 of the pieces, are enough for runs of any number and length, and memory has a bound:
// copies of all keys of one sequence, and of a piece's queries.
//   Runs come most keys first. The gradients of keys are added up: runs of one piece have no key in common, so no
// element is a sum of more than the rank's two pieces, and the order does not matter.
//
// Compared: a square over all m + n tokens with queries of zero needs no other kernels, but N times the arithmetic
// where a document fills a sequence that N ranks share; two attentions a run, over the m keys without a mask and over
// the n, put together by their lse, need a kernel more and round what they make twice.
#pragma once

#include "kernels/attention/padded_documents.h"

namespace octavo {

// The documents [first, first + count) of the list, in sequences of shape.seq_len queries and `keys` keys.
struct RunBatch {
  SdpaShape shape;
  int64_t keys = 0;
  int64_t first = 0;
  int64_t count = 0;
};
int64_t num_run_levels(const ContextSdpaShape& shape);
RunBatch empty_run_batch(const ContextSdpaShape& shape, int64_t level);
// The batch that begins with document `first` of a micro-batch of `shape`.
RunBatch run_batch(const Documents& documents, int64_t first, const ContextSdpaShape& shape);

// As PaddedTensors.
struct RunTensors {
  RunTensors(const RunBatch& batch, DType dtype, void* memory);

  Tensor query_lengths, key_lengths;  // [batch] int32: of each sequence without its padding
  Tensor q, d_q, out, d_out;          // [batch * seq_len, out_width]
  Tensor kv, d_kv;                    // [batch * keys, kv_width], k heads before v heads
  Tensor lse;                         // [batch, num_heads, seq_len] float32
  int64_t bytes = 0;                  // of all of them, a multiple of 256
};

// What runs batches: the kernels of kernels/attention/padded_documents.h by their names, and attention of a batch.
class RunBatchOps {
 public:
  virtual ~RunBatchOps() = default;

  virtual void padded_lengths(const Tensor& lengths, const PaddedRows& map) = 0;
  virtual void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) = 0;
  virtual void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) = 0;
  virtual void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t piece) = 0;
  virtual void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) = 0;
  virtual void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) = 0;
  // out and lse = of q and kv; d_q and d_kv = of d_out, out, lse, q and kv. The workspace is in use up to
  // tensors.bytes.
  virtual void forward(const RunBatch& batch, const RunTensors& tensors) = 0;
  virtual void backward(const RunBatch& batch, const RunTensors& tensors) = 0;
};

// Within args.documents, of which the device's list is what `ops` read; in the stream's workspace.
void forward_within_documents(const ContextSdpaForward& args, RunBatchOps& ops, Stream& stream);
void backward_within_documents(const ContextSdpaBackward& args, RunBatchOps& ops, Stream& stream);

}  // namespace octavo
