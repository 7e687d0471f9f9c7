// Shape and arguments of an attention (kernels/attention/sdpa.h), which all of its implementations read.
#pragma once

#include "kernels/attention_shapes/documents.h"

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
  // (kernels/attention_shapes/documents.h).
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
  // orders the elements differently within documents (kernels/flash_attention/flash_documents.h).
  Tensor lse;
  Tensor qkv;  // [batch * seq_len, qkv_width], with rotary embedding applied.
  // [batch * whole_seq_len, kv_width], for shared sequences only. K heads precede v heads; rows are ordered by
  // position.
  Tensor kv = {};
  Documents documents = {};  // Optional documents of this rank's tokens.
};

struct SdpaBackward {
  SdpaShape shape;
  // = [batch * seq_len, qkv_width]. For shared sequences only the columns of the queries are written.
  // Requires: does not share memory with qkv.
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

// Rows of keys and values, or of their gradients, with k heads before v heads. They are the rows of `kv`, or the
// columns of a packed qkv after its queries.
struct KeyRows {
  KeyRows(const SdpaShape& s, const Tensor& qkv, const Tensor& kv)
      : rows(s.context.size == 1 ? qkv : kv),
        k_column(s.context.size == 1 ? s.out_width() : 0),
        v_column(k_column + s.kv_width() / 2) {}

  Tensor rows;
  int64_t k_column, v_column;  // Columns where the heads of k and of v begin.
};

}  // namespace octavo
