// Causal grouped-query scaled dot-product attention on the packed qkv buffer (Vaswani et al., arXiv 1706.03762; GQA,
// Ainslie et al., arXiv 2305.13245; the log-sum-exp form of backward, Dao et al., arXiv 2205.14135):
//
//   s[t][j] = q_t . k_j / sqrt(head_dim) for start(t) <= j <= p(t),   p = softmax(s),   out_t = sum_j p[t][j] v_j
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). j is a position in the sequence and p(t) the
// position of token t. start(t) is the first position of the document of token t if documents are given, otherwise 0.
//
// A rank has either whole sequences, or its share of the queries of each sequence together with all keys and values of
// the sequence (context parallelism, core/sequence_chunks.h). With whole sequences p(t) is t, and keys and values are
// columns of qkv.
//
// Compute dtype is float32 (CPU only) or bfloat16. head_dim is 32, 64 or 128 on GPUs. On GPUs each chunk of a shared
// sequence is one attention whose causal mask is aligned at the last key of the chunk. Attention within documents has
// launches of several documents (kernels/attention/flash_documents.h) or batches of padded copies
// (kernels/attention/padded_documents.h). Without documents the length of the chunks of a shared sequence must be a
// multiple of kContextChunkUnit on GPUs.
//
// Backward: with D_t = d_out_t . out_t,  p = exp(s - lse),  ds = p * (d_out_t . v_j - D_t),
//   d_q_t = sum_j ds k_j / sqrt(head_dim),  d_k_j = sum_t ds q_t / sqrt(head_dim),  d_v_j = sum_t p d_out_t,
// where d_k and d_v are summed over the query heads that share the key/value head.
//
// Queued on `stream`. Forward is deterministic. Backward is deterministic on the CPU, and on GPUs if the stream is
// deterministic, which is slower.
#pragma once

#include <string>

#include "core/stream.h"
#include "kernels/attention/documents.h"

namespace octavo {

struct SdpaShape {
  int64_t batch = 0;
  int64_t seq_len = 0;  // Tokens of each sequence on this rank.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  // Position of this rank among those that share each sequence.
  ContextRank context = {};

  constexpr int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  constexpr int64_t out_width() const { return num_heads * head_dim; }
  constexpr int64_t kv_width() const { return 2 * num_kv_heads * head_dim; }
  constexpr int64_t whole_seq_len() const { return seq_len * context.size; }
  constexpr int64_t chunk_length() const { return seq_len / context.chunks(); }
  // Returns the shape of one chunk of each sequence, treated as a sequence of its own.
  constexpr SdpaShape chunk() const { return {batch, chunk_length(), num_heads, num_kv_heads, head_dim}; }

  // Returns the index, among the rank's chunks of the sequence, of the chunk that contains a run of tokens
  // (kernels/attention/documents.h).
  constexpr int64_t chunk_of(const Document& run) const { return run.begin % seq_len / chunk_length(); }
  // Returns the row of the first key that a run attends to, among the rows of all keys. The other keys of the run
  // follow it. The keys of the run's own tokens are the last ones.
  constexpr int64_t first_key(const Document& run) const {
    const int64_t position = context.position(run.begin % seq_len, whole_seq_len());
    return run.begin / seq_len * whole_seq_len() + position - run.before;
  }
  // Returns the index in lse of the first token of a run, for one query head. The elements of the run's other tokens
  // follow it.
  constexpr int64_t first_lse(const Document& run, int64_t head) const {
    const int64_t sequence = chunk_of(run) * batch + run.begin / seq_len;
    return (sequence * num_heads + head) * chunk_length() + run.begin % chunk_length();
  }
  bool operator==(const SdpaShape&) const = default;
};

struct SdpaForward {
  SdpaShape shape;
  Tensor out;  // = [batch * seq_len, out_width]
  // = [chunks * batch, num_heads, seq_len / chunks] float32: natural logarithm of the sum of exp(s). FlashAttention
  // within documents has another order of its elements (kernels/attention/flash_documents.h).
  Tensor lse;
  Tensor qkv;  // [batch * seq_len, qkv_width], with rotary embedding applied.
  // [batch * whole_seq_len, kv_width], for shared sequences only. K heads precede v heads; rows are ordered by
  // position.
  Tensor kv = {};
  Documents documents = {};  // Optional documents of this rank's tokens.
};
void sdpa_forward(const SdpaForward& args, Stream& stream);

struct SdpaBackward {
  SdpaShape shape;
  // = [batch * seq_len, qkv_width], must not alias qkv. For shared sequences only the columns of the queries are
  // written.
  Tensor d_qkv;
  // = [batch * whole_seq_len, kv_width], for shared sequences only: this rank's term of the gradient, which is a sum
  // over ranks. Zero for keys that no query of this rank attends to.
  Tensor d_kv = {};
  Tensor d_out;    // [batch * seq_len, out_width]
  Tensor out;      // Attention output of the forward pass.
  Tensor lse;      // Log-sum-exp of the forward pass.
  Tensor qkv;      // Same input as in the forward pass.
  Tensor kv = {};  // Same input as in the forward pass.
  Documents documents = {};
};
void sdpa_backward(const SdpaBackward& args, Stream& stream);

// Rows of keys and values, or of their gradients, with k heads before v heads. They are the rows of `kv`, or the
// columns of a packed qkv after its queries.
struct KeyRows {
  KeyRows(const SdpaShape& s, bool packed, const Tensor& qkv, const Tensor& kv)
      : rows(packed ? qkv : kv), k_column(packed ? s.out_width() : 0), v_column(k_column + s.kv_width() / 2) {}
  KeyRows(const SdpaShape& s, const Tensor& qkv, const Tensor& kv) : KeyRows(s, s.context.size == 1, qkv, kv) {}

  Tensor rows;
  int64_t k_column, v_column;  // Columns where the heads of k and of v begin.
};

// Returns the size of the scratch that forward or backward needs, whichever is larger. The size is equal on every rank.
// `within_documents` is for calls with documents, for which cuDNN also needs space for copies of the tensors
// (kernels/attention/padded_documents.h). cuDNN's plans are built here. On a dry-run stream cuDNN cannot be asked, so
// its scratch is estimated from measurements, while FlashAttention's scratch (kernels/attention/flash_attention.h) is
// exact. cuDNN's backward sums d_q in float32, [batch, num_heads, seq_len, head_dim], and needs one number per row. If
// query heads share kv heads, it also stores d_k and d_v of every query head in bfloat16 (514 MiB for 2 x 8192 tokens,
// 32 heads of 128, 8 kv heads). The estimate for the deterministic backward is an upper bound: one sum of d_q for every
// 256 keys with heads of 128, and for every 128 keys with smaller heads (measured: 8.4 GB).
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents = false);

// Returns the estimate of cuDNN's scratch on a dry-run stream. Queries attend to `keys` keys, which may be more than
// there are queries.
int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic);

// Returns the size of the part of the scratch that holds, on GPUs without documents, the gradients of the keys that the
// first chunk of a shared sequence attends to (at most half the sequence). 0 for whole sequences.
int64_t early_d_kv_bytes(const SdpaShape& shape, DType dtype);

// The length of the chunks of shared sequences must be a multiple of this number of tokens on GPUs.
inline constexpr int64_t kContextChunkUnit = 128;

// Returns whether GPUs have kernels for this head size.
inline constexpr bool sdpa_has_kernels_for(int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128;
}
// Throws InputError, which lists the supported sizes, if the device has no kernel for this head size and dtype.
void sdpa_check_supported(int64_t head_dim, DType dtype, Device device);

// Returns the version of cuDNN that this process has loaded, such as "9.14.0". Empty in a build without CUDA.
std::string cudnn_version();

}  // namespace octavo
