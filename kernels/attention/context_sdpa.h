// Attention (kernels/attention/sdpa.h) of a rank that shares each sequence with others (context parallelism,
// core/sequence_pieces.h): of its own queries, over the keys and values of the whole sequence up to each of them. Token
// t of the rank's share of a sequence has position p(t) there; with the keys k_j and values v_j of position j,
//
//   s[t][j] = q_t . k_j / sqrt(head_dim) for start(t) <= j <= p(t),   p = softmax(s),   out_t = sum_j p[t][j] v_j
//
// On GPUs each of the two pieces is one attention, of queries p0 to p1 over keys 0 to p1 with the causal mask aligned
// at the bottom right; within documents each run of tokens of one document is (kernels/attention/run_batches.h). Pieces
// are multiples of kContextPieceUnit tokens there. Backward is as in kernels/attention/sdpa.h; d_kv is this rank's part
// of a sum over the ranks, zero for keys that none of its queries sees. Queued on `stream`; deterministic as sdpa.
#pragma once

#include "core/sequence_pieces.h"
#include "kernels/attention/sdpa.h"

namespace octavo {

struct ContextSdpaShape {
  SdpaShape queries;  // seq_len: of a rank's share
  ContextRank context;
  constexpr int64_t whole_seq_len() const { return queries.seq_len * context.size; }
  constexpr int64_t kv_width() const { return 2 * queries.num_kv_heads * queries.head_dim; }
  constexpr int64_t piece_length() const { return queries.seq_len / context.pieces(); }

  // Where the tensors below have what belongs to a run of the rank's tokens (kernels/attention/documents.h). The rank's
  // piece of its sequence that it lies in:
  constexpr int64_t piece_of(const Document& run) const { return run.begin % queries.seq_len / piece_length(); }
  // The row of kv of the first key that it attends to; the others follow, its own last.
  constexpr int64_t first_key(const Document& run) const {
    const int64_t position = context.position(run.begin % queries.seq_len, whole_seq_len());
    return run.begin / queries.seq_len * whole_seq_len() + position - run.before;
  }
  // The element of lse of a query head of its first token; those of the others follow.
  constexpr int64_t first_lse(const Document& run, int64_t head) const {
    const int64_t sequence = piece_of(run) * queries.batch + run.begin / queries.seq_len;
    return (sequence * queries.num_heads + head) * piece_length() + run.begin % piece_length();
  }
};

struct ContextSdpaForward {
  ContextSdpaShape shape;
  Tensor out;           // = [batch * seq_len, num_heads * head_dim]
  Tensor lse;           // = [pieces * batch, num_heads, seq_len / pieces] float32, as in kernels/attention/sdpa.h
  Tensor qkv;           // [batch * seq_len, qkv_width], rotated; the queries are read
  Tensor kv;            // [batch * whole_seq_len, kv_width], k heads before v heads, by position
  Documents documents;  // optional, of the rank's tokens
};
void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream);

struct ContextSdpaBackward {
  ContextSdpaShape shape;
  Tensor d_qkv;  // [batch * seq_len, qkv_width]: the queries' columns =, the others are left as they are
  Tensor d_kv;   // = [batch * whole_seq_len, kv_width]
  Tensor d_out;  // [batch * seq_len, num_heads * head_dim]
  Tensor out;    // of the forward, as what follows
  Tensor lse;
  Tensor qkv;
  Tensor kv;
  Documents documents;
};
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream);

// Scratch that the larger of forward and backward needs, `within_documents` or not, the same on every rank. What runs
// is planned and built here; on a planned stream it is estimated as in kernels/attention/sdpa.h.
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream,
                                     bool within_documents = false);
// Of it, on GPUs without documents: for the gradients of the keys that a rank's first piece sees, at most half the
// sequence.
int64_t early_d_kv_bytes(const ContextSdpaShape& shape, DType dtype);

// The pieces that GPUs have kernels for are multiples of so many tokens.
inline constexpr int64_t kContextPieceUnit = 128;

}  // namespace octavo
