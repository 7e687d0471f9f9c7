// Attention by cuDNN (kernels/attention/sdpa_plans_cudnn.h). Documents are copied into batches of sequences of equal
// length, with padding that cuDNN is told of (kernels/attention/padded_documents.h). Of a rank that shares its
// sequences (kernels/attention/context_sdpa.h), each piece of queries is a graph of its own, over the keys up to its
// end.
#include <algorithm>

#include "core/error.h"
#include "kernels/attention/context_sdpa.h"
#include "kernels/attention/padded_documents.h"
#include "kernels/attention/sdpa_plans_cudnn.h"
#include "kernels/math/sum_terms.h"

namespace octavo::cuda {

namespace {

// Of the packed qkv buffer: a query sees its own sequence.
SdpaGeometry packed_geometry(const SdpaShape& s) {
  const Strides qkv{s.seq_len * s.qkv_width(), s.qkv_width()};
  return {.shape = s,
          .keys = s.seq_len,
          .q = qkv,
          .kv = qkv,
          .out = {s.seq_len * s.out_width(), s.out_width()},
          .d_kv = qkv};
}

// Where the first query, key and value head of a packed buffer lie.
struct Heads {
  BFloat16* q;
  BFloat16* k;
  BFloat16* v;
  Heads(const Tensor& packed, const SdpaShape& s)
      : q(packed.data<BFloat16>()), k(q + s.num_heads * s.head_dim), v(k + s.num_kv_heads * s.head_dim) {}
};

// Sequences of one length, or with `lengths` on the device of what each has before its padding.
struct Sequences {
  void* lengths = nullptr;
  int64_t workspace_begin = 0;  // bytes of the workspace that are in use
};

void* workspace_of(const SdpaPlan& plan, const Sequences& sequences, const Stream& stream) {
  if (plan.workspace_bytes == 0) return nullptr;
  return static_cast<char*>(stream.workspace(sequences.workspace_begin + plan.workspace_bytes)) +
         sequences.workspace_begin;
}

void forward(const SdpaForward& args, const Sequences& sequences, Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const SdpaPlan& plan = plans.forward(packed_geometry(args.shape), sequences.lengths != nullptr);
  const Heads qkv(args.qkv, args.shape);
  SdpaPointers pointers{{kQ, qkv.q}, {kK, qkv.k}, {kV, qkv.v}, {kOut, args.out.raw()}, {kLse, args.lse.raw()}};
  if (plan.takes_lengths) {
    pointers.emplace(kQueryLengths, sequences.lengths);
    pointers.emplace(kKeyLengths, sequences.lengths);
  }
  plans.execute(plan, pointers, args.shape, workspace_of(plan, sequences, stream));
}

void backward(const SdpaBackward& args, const Sequences& sequences, Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const SdpaPlan& plan = plans.backward(packed_geometry(args.shape), sequences.lengths != nullptr, stream);
  const Heads qkv(args.qkv, args.shape);
  const Heads d_qkv(args.d_qkv, args.shape);
  SdpaPointers pointers{{kQ, qkv.q},
                        {kK, qkv.k},
                        {kV, qkv.v},
                        {kOut, args.out.raw()},
                        {kLse, args.lse.raw()},
                        {kDOut, args.d_out.raw()},
                        {kDQ, d_qkv.q},
                        {kDK, d_qkv.k},
                        {kDV, d_qkv.v}};
  if (plan.takes_lengths) {
    void* lengths = sequences.lengths != nullptr ? sequences.lengths : plan.lengths.data();
    pointers.emplace(kQueryLengths, lengths);
    pointers.emplace(kKeyLengths, lengths);
  }
  plans.execute(plan, pointers, args.shape, workspace_of(plan, sequences, stream));
}

// Calls run(shape, tensors, documents) for each batch of documents, behind which cuDNN may use the workspace.
template <typename Run>
void for_padded_batches(const Documents& documents, const SdpaShape& shape, const Tensor& qkv, Stream& stream,
                        Run run) {
  for (int64_t first = 0; first < documents.size();) {
    const PaddedBatch batch = padded_batch(documents, first, shape);
    const int64_t bytes = PaddedTensors(batch.shape, qkv.dtype(), nullptr).bytes;
    const PaddedTensors padded(batch.shape, qkv.dtype(), stream.workspace(bytes));
    const Tensor list = documents.device.rows(first, first + batch.count);
    padded_lengths(padded.lengths, list, stream);
    pad_rows(padded.qkv, qkv, list, batch.shape.seq_len, stream);
    run(batch.shape, padded, list);
    first += batch.count;
  }
}

void forward_within_documents(const SdpaForward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const Tensor& list) {
                       forward(
                           {.shape = shape, .out = padded.out, .lse = padded.lse, .qkv = padded.qkv, .documents = {}},
                           {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.out, padded.out, list, shape.seq_len, stream);
                       unpad_lse(args.lse, padded.lse, list, stream);
                     });
}

void backward_within_documents(const SdpaBackward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const Tensor& list) {
                       pad_rows(padded.out, args.out, list, shape.seq_len, stream);
                       pad_rows(padded.d_out, args.d_out, list, shape.seq_len, stream);
                       pad_lse(padded.lse, args.lse, list, stream);
                       backward({.shape = shape,
                                 .d_qkv = padded.d_qkv,
                                 .d_out = padded.d_out,
                                 .out = padded.out,
                                 .lse = padded.lse,
                                 .qkv = padded.qkv,
                                 .documents = {}},
                                {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.d_qkv, padded.d_qkv, list, shape.seq_len, stream);
                     });
}

int64_t plans_workspace_bytes(const SdpaShape& shape, bool padded, Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const int64_t forward_bytes = plans.forward(packed_geometry(shape), padded).workspace_bytes;
  if (shape.seq_len == 1) return forward_bytes;  // cuDNN has no backward for a single token
  return std::max(forward_bytes, plans.backward(packed_geometry(shape), padded, stream).workspace_bytes);
}

// One of a rank's pieces of each sequence.
struct Piece {
  Piece(const ContextSdpaShape& of, int64_t i) : shape(of), first_token(i * length()), index(i) {}

  int64_t length() const { return shape.queries.seq_len / shape.context.pieces(); }
  int64_t keys() const { return (shape.context.piece(index) + 1) * length(); }
  // `d_kv_tokens` a sequence in the gradient of the keys.
  SdpaGeometry geometry(int64_t d_kv_tokens) const {
    const SdpaShape& q = shape.queries;
    SdpaShape piece = q;
    piece.seq_len = length();
    return {.shape = piece,
            .keys = keys(),
            .q = {q.seq_len * q.qkv_width(), q.qkv_width()},
            .kv = {shape.whole_seq_len() * shape.kv_width(), shape.kv_width()},
            .out = {q.seq_len * q.out_width(), q.out_width()},
            .d_kv = {d_kv_tokens * shape.kv_width(), shape.kv_width()}};
  }
  BFloat16* rows(const Tensor& tensor) const { return tensor.data<BFloat16>() + first_token * tensor.dim(1); }
  float* rows_of_lse(const Tensor& lse) const {
    const SdpaShape& q = shape.queries;
    return lse.data<float>() + index * q.batch * q.num_heads * length();
  }
  BFloat16* values(BFloat16* keys) const { return keys + shape.kv_width() / 2; }

  ContextSdpaShape shape;
  int64_t first_token;  // of the rank's share of a sequence
  int64_t index;
};

void forward(const ContextSdpaForward& args, const Piece& piece, Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const SdpaGeometry geometry = piece.geometry(args.shape.whole_seq_len());
  const SdpaPlan& plan = plans.forward(geometry, false);
  auto* keys = args.kv.data<BFloat16>();
  SdpaPointers pointers{{kQ, piece.rows(args.qkv)},
                        {kK, keys},
                        {kV, piece.values(keys)},
                        {kOut, piece.rows(args.out)},
                        {kLse, piece.rows_of_lse(args.lse)}};
  plans.execute(plan, pointers, geometry.shape, workspace_of(plan, {}, stream));
}

// d_kv: `d_kv_tokens` of each sequence, of which those that the piece sees are written.
void backward(const ContextSdpaBackward& args, const Piece& piece, BFloat16* d_kv, int64_t d_kv_tokens,
              Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const SdpaGeometry geometry = piece.geometry(d_kv_tokens);
  const SdpaPlan& plan = plans.backward(geometry, false, stream);
  auto* keys = args.kv.data<BFloat16>();
  SdpaPointers pointers{{kQ, piece.rows(args.qkv)},
                        {kK, keys},
                        {kV, piece.values(keys)},
                        {kOut, piece.rows(args.out)},
                        {kLse, piece.rows_of_lse(args.lse)},
                        {kDOut, piece.rows(args.d_out)},
                        {kDQ, piece.rows(args.d_qkv)},
                        {kDK, d_kv},
                        {kDV, piece.values(d_kv)}};
  const Sequences behind{.workspace_begin = early_d_kv_bytes(args.shape, args.qkv.dtype())};
  plans.execute(plan, pointers, geometry.shape, workspace_of(plan, behind, stream));
}

int64_t piece_workspace_bytes(const Piece& piece, Stream& stream) {
  auto& plans = stream.state<SdpaPlans>();
  const int64_t whole = piece.shape.whole_seq_len();
  const int64_t d_kv_tokens = piece.index == 0 ? whole / 2 : whole;
  return std::max(plans.forward(piece.geometry(whole), false).workspace_bytes,
                  plans.backward(piece.geometry(d_kv_tokens), false, stream).workspace_bytes);
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) return forward_within_documents(args, stream);
  forward(args, {}, stream);
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) return backward_within_documents(args, stream);
  backward(args, {}, stream);
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents) {
  sdpa_check_supported(shape.head_dim, dtype, Device::kCuda);
  if (!within_documents) return plans_workspace_bytes(shape, false, stream);
  int64_t bytes = 0;
  for (int64_t level = 0; level < num_padded_levels(shape); ++level) {
    const SdpaShape padded = padded_shape(shape, level);
    bytes = std::max(bytes, PaddedTensors(padded, dtype, nullptr).bytes + plans_workspace_bytes(padded, true, stream));
  }
  return bytes;
}

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  for (int64_t i = 0; i < args.shape.context.pieces(); ++i) forward(args, Piece(args.shape, i), stream);
}

// The late piece sees all keys that the early one does, so it goes first and writes their gradients; those of the early
// one are added. No query of the rank sees the keys behind the late piece.
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  const int64_t whole = args.shape.whole_seq_len();
  const Piece early(args.shape, 0);
  const Piece late(args.shape, 1);
  const SdpaShape& q = args.shape.queries;
  const auto rows_of = [&](const Tensor& d_kv, int64_t tokens, int64_t sequence, int64_t begin, int64_t end) {
    return d_kv.rows(sequence * tokens + begin, sequence * tokens + end).view({(end - begin) * args.shape.kv_width()});
  };
  backward(args, late, args.d_kv.data<BFloat16>(), whole, stream);
  const Tensor early_d_kv(stream.workspace(early_d_kv_bytes(args.shape, args.qkv.dtype())), args.qkv.dtype(),
                          {q.batch * whole / 2, args.shape.kv_width()});
  backward(args, early, early_d_kv.data<BFloat16>(), whole / 2, stream);
  for (int64_t b = 0; b < q.batch; ++b) {
    stream.zero(rows_of(args.d_kv, whole, b, late.keys(), whole));
    sum_terms({.out = rows_of(args.d_kv, whole, b, 0, early.keys()),
               .terms = rows_of(early_d_kv, whole / 2, b, 0, early.keys()),
               .accumulate = true},
              stream);
  }
}

// Queries that see all keys, rank 0's last ones, take the most: so every rank has the same size.
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream) {
  sdpa_check_supported(shape.queries.head_dim, dtype, Device::kCuda);
  ContextSdpaShape first = shape;
  first.context.rank = 0;
  int64_t bytes = piece_workspace_bytes(Piece(first, 1), stream);
  for (int64_t i = 0; i < shape.context.pieces(); ++i) {
    bytes = std::max(bytes, piece_workspace_bytes(Piece(shape, i), stream));
  }
  return early_d_kv_bytes(shape, dtype) + bytes;
}

}  // namespace octavo::cuda
