// Causal grouped-query scaled dot-product attention on the packed qkv buffer (Vaswani et al., arXiv 1706.03762; GQA,
// Ainslie et al., arXiv 2305.13245; the log-sum-exp form of backward, Dao et al., arXiv 2205.14135):
//
//   s[t][j] = q_t . k_j / sqrt(head_dim) for start(t) <= j <= p(t),   p = softmax(s),   out_t = sum_j p[t][j] v_j
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). j is a position in the sequence, p(t) the position
// of token t. start(t) is 0, or the first position of the document of token t where documents are given.
//
// A rank has the queries of whole sequences, or its share of each sequence (context parallelism,
// core/sequence_pieces.h) and the keys and values of all of it. A rank with whole sequences is a group of one: p(t) is
// t, and its keys and values are columns of qkv.
//
// Compute dtype is float32 (CPU) or bfloat16 (both); head_dim 32, 64 or 128 on GPUs. On GPUs each piece is one
// attention, with the causal mask aligned at its last key; within documents batches of them are
// (kernels/attention/padded_documents.h). Without documents the pieces of a shared sequence are multiples of
// kContextPieceUnit tokens on GPUs.
//
// Backward: with D_t = d_out_t . out_t,  p = exp(s - lse),  ds = p * (d_out_t . v_j - D_t),
//   d_q_t = sum_j ds k_j / sqrt(head_dim),  d_k_j = sum_t ds q_t / sqrt(head_dim),  d_v_j = sum_t p d_out_t,
// the latter two summed over the query heads that share the key/value head.
//
// Queued on `stream`. Forward is deterministic; backward is on the CPU, and on GPUs when the stream is deterministic,
// at some cost in time.
#pragma once

#include <string>

#include "core/stream.h"
#include "kernels/attention/documents.h"

namespace octavo {

struct SdpaShape {
  int64_t batch = 0;
  int64_t seq_len = 0;  // tokens of each sequence on this rank
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  ContextRank context = {};  // this rank among those that share each sequence

  constexpr int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  constexpr int64_t out_width() const { return num_heads * head_dim; }
  constexpr int64_t kv_width() const { return 2 * num_kv_heads * head_dim; }
  constexpr int64_t whole_seq_len() const { return seq_len * context.size; }
  constexpr int64_t piece_length() const { return seq_len / context.pieces(); }
  // The shape of one piece of each sequence as a sequence of its own.
  constexpr SdpaShape piece() const { return {batch, piece_length(), num_heads, num_kv_heads, head_dim}; }

  // Returns which of the rank's pieces of its sequence a run of tokens (kernels/attention/documents.h) lies in.
  constexpr int64_t piece_of(const Document& run) const { return run.begin % seq_len / piece_length(); }
  // Returns the row of the first key that a run attends to, among the rows of all keys. The run's other keys follow it,
  // those of its own tokens last.
  constexpr int64_t first_key(const Document& run) const {
    const int64_t position = context.position(run.begin % seq_len, whole_seq_len());
    return run.begin / seq_len * whole_seq_len() + position - run.before;
  }
  // Returns the element of lse of a query head of a run's first token. Those of its other tokens follow.
  constexpr int64_t first_lse(const Document& run, int64_t head) const {
    const int64_t sequence = piece_of(run) * batch + run.begin / seq_len;
    return (sequence * num_heads + head) * piece_length() + run.begin % piece_length();
  }
  bool operator==(const SdpaShape&) const = default;
};

struct SdpaForward {
  SdpaShape shape;
  Tensor out;      // = [batch * seq_len, out_width]
  Tensor lse;      // = [pieces * batch, num_heads, seq_len / pieces] float32: natural logarithm of the sum of exp(s)
  Tensor qkv;      // [batch * seq_len, qkv_width], rotated
  Tensor kv = {};  // [batch * whole_seq_len, kv_width] of shared sequences alone: k heads before v heads, by position
  Documents documents = {};  // optional, of this rank's tokens
};
void sdpa_forward(const SdpaForward& args, Stream& stream);

struct SdpaBackward {
  SdpaShape shape;
  // = [batch * seq_len, qkv_width], may not alias qkv. Of shared sequences the queries' columns alone are written.
  Tensor d_qkv;
  // = [batch * whole_seq_len, kv_width] of shared sequences alone: this rank's term of a sum over the ranks, zero for
  // keys that none of its queries sees.
  Tensor d_kv = {};
  Tensor d_out;    // [batch * seq_len, out_width]
  Tensor out;      // of the forward
  Tensor lse;      // of the forward
  Tensor qkv;      // of the forward
  Tensor kv = {};  // of the forward
  Documents documents = {};
};
void sdpa_backward(const SdpaBackward& args, Stream& stream);

// Rows of keys and values, or of their gradients, k heads before v heads: those of `kv`, or of a packed qkv after its
// queries.
struct KeyRows {
  KeyRows(const SdpaShape& s, bool packed, const Tensor& qkv, const Tensor& kv)
      : rows(packed ? qkv : kv), k_column(packed ? s.out_width() : 0), v_column(k_column + s.kv_width() / 2) {}
  KeyRows(const SdpaShape& s, const Tensor& qkv, const Tensor& kv) : KeyRows(s, s.context.size == 1, qkv, kv) {}

  Tensor rows;
  int64_t k_column, v_column;  // of the first heads
};

// Scratch that the larger of forward and backward needs, `within_documents` or not, the same on every rank: with them,
// on GPUs, also for copies of the tensors (kernels/attention/padded_documents.h). What runs is planned and built here.
// FlashAttention's (kernels/attention/flash_attention.h) is known. On a planned stream, where cuDNN cannot be asked,
// what was measured: backward sums d_q in float32, [batch, num_heads, seq_len, head_dim], beside one number a row;
// where queries share kv heads, it has d_k and d_v of every query head in bfloat16 (514 MiB at 2 x 8192 tokens, 32
// heads of 128, 8 kv heads). The deterministic one is estimated from above, with a sum for every 256 keys of heads of
// 128, for every 128 of smaller ones (8.4 GB were measured there).
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents = false);

// Returns what a planned stream expects of cuDNN for sequences whose queries see `keys` keys, more than they are where
// others precede them.
int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic);

// Returns the part of the scratch that holds, on GPUs without documents, the gradients of the keys that the first piece
// of a shared sequence sees, at most half the sequence. 0 for whole sequences.
int64_t early_d_kv_bytes(const SdpaShape& shape, DType dtype);

// Tokens that the pieces of shared sequences are multiples of on GPUs.
inline constexpr int64_t kContextPieceUnit = 128;

// Of heads of these sizes, on GPUs.
inline constexpr bool sdpa_has_kernels_for(int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128;
}
// Throws InputError, naming the sizes there are, when the device has no kernel for this head size and dtype.
void sdpa_check_supported(int64_t head_dim, DType dtype, Device device);

// The version of cuDNN that this process has loaded, "9.14.0"; empty in a build without CUDA.
std::string cudnn_version();

}  // namespace octavo
