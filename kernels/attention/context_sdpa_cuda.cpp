// Attention on GPUs of a rank that shares its sequences (kernels/attention/context_sdpa.h): each piece of queries is an
// attention of its own (kernels/attention/attend.h), over the keys up to its end; within documents each batch of runs
// is (kernels/attention/run_batches.h).
#include <algorithm>

#include "core/error.h"
#include "kernels/attention/attend.h"
#include "kernels/attention/run_batches.h"
#include "kernels/math/sum_terms.h"

namespace octavo::cuda {

namespace {

// Of keys in rows of k heads before v heads.
BFloat16* values_behind(BFloat16* keys, const SdpaShape& s) { return keys + s.num_kv_heads * s.head_dim; }

// One of a rank's pieces of each sequence.
struct Piece {
  Piece(const ContextSdpaShape& of, int64_t i) : shape(of), first_token(i * of.piece_length()), index(i) {}

  int64_t keys() const { return (shape.context.piece(index) + 1) * shape.piece_length(); }
  // `d_kv_tokens` a sequence in the gradient of the keys.
  SdpaGeometry geometry(int64_t d_kv_tokens) const {
    const SdpaShape& q = shape.queries;
    SdpaShape piece = q;
    piece.seq_len = shape.piece_length();
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
    return lse.data<float>() + index * q.batch * q.num_heads * shape.piece_length();
  }

  ContextSdpaShape shape;
  int64_t first_token;  // of the rank's share of a sequence
  int64_t index;
};

void forward(const ContextSdpaForward& args, const Piece& piece, Stream& stream) {
  auto* keys = args.kv.data<BFloat16>();
  attend_forward(piece.geometry(args.shape.whole_seq_len()), SdpaLengths::kFull,
                 {{kQ, piece.rows(args.qkv)},
                  {kK, keys},
                  {kV, values_behind(keys, args.shape.queries)},
                  {kOut, piece.rows(args.out)},
                  {kLse, piece.rows_of_lse(args.lse)}},
                 0, stream);
}

// d_kv: `d_kv_tokens` of each sequence, of which those that the piece sees are written.
void backward(const ContextSdpaBackward& args, const Piece& piece, BFloat16* d_kv, int64_t d_kv_tokens,
              Stream& stream) {
  auto* keys = args.kv.data<BFloat16>();
  attend_backward(piece.geometry(d_kv_tokens), SdpaLengths::kFull,
                  {{kQ, piece.rows(args.qkv)},
                   {kK, keys},
                   {kV, values_behind(keys, args.shape.queries)},
                   {kOut, piece.rows(args.out)},
                   {kLse, piece.rows_of_lse(args.lse)},
                   {kDOut, piece.rows(args.d_out)},
                   {kDQ, piece.rows(args.d_qkv)},
                   {kDK, d_kv},
                   {kDV, values_behind(d_kv, args.shape.queries)}},
                  early_d_kv_bytes(args.shape, args.qkv.dtype()), stream);
}

int64_t piece_workspace_bytes(const Piece& piece, Stream& stream) {
  const int64_t whole = piece.shape.whole_seq_len();
  const int64_t d_kv_tokens = piece.index == 0 ? whole / 2 : whole;
  return std::max(attend_forward_workspace_bytes(piece.geometry(whole), SdpaLengths::kFull, stream),
                  attend_backward_workspace_bytes(piece.geometry(d_kv_tokens), SdpaLengths::kFull, stream));
}

SdpaGeometry geometry_of(const RunBatch& batch) {
  const SdpaShape& s = batch.shape;
  const Strides queries{s.seq_len * s.out_width(), s.out_width()};
  const int64_t kv_width = ContextSdpaShape{.queries = s, .context = {}}.kv_width();
  const Strides keys{batch.keys * kv_width, kv_width};
  return {.shape = s, .keys = batch.keys, .q = queries, .kv = keys, .out = queries, .d_kv = keys};
}

int64_t batch_workspace_bytes(const RunBatch& batch, DType dtype, Stream& stream) {
  const SdpaGeometry geometry = geometry_of(batch);
  return RunTensors(batch, dtype, nullptr).bytes +
         std::max(attend_forward_workspace_bytes(geometry, SdpaLengths::kAtTheEnd, stream),
                  attend_backward_workspace_bytes(geometry, SdpaLengths::kAtTheEnd, stream));
}

class CudaRunBatchOps : public RunBatchOps {
 public:
  explicit CudaRunBatchOps(Stream& stream) : stream_(stream) {}

  void padded_lengths(const Tensor& lengths, const PaddedRows& map) override {
    cuda::padded_lengths(lengths, map, stream_);
  }
  void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) override {
    cuda::pad_rows(padded, rows, map, stream_);
  }
  void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) override {
    cuda::unpad_rows(rows, padded, map, stream_);
  }
  void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t piece) override {
    cuda::add_unpadded_rows(rows, padded, map, piece, stream_);
  }
  void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) override {
    cuda::pad_lse(padded, lse, map, stream_);
  }
  void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) override {
    cuda::unpad_lse(lse, padded, map, stream_);
  }
  void forward(const RunBatch& batch, const RunTensors& t) override {
    attend_forward(geometry_of(batch), SdpaLengths::kAtTheEnd, pointers_of(batch, t), t.bytes, stream_);
  }
  void backward(const RunBatch& batch, const RunTensors& t) override {
    SdpaPointers pointers = pointers_of(batch, t);
    auto* d_keys = t.d_kv.data<BFloat16>();
    pointers.insert(
        {{kDOut, t.d_out.raw()}, {kDQ, t.d_q.raw()}, {kDK, d_keys}, {kDV, values_behind(d_keys, batch.shape)}});
    attend_backward(geometry_of(batch), SdpaLengths::kAtTheEnd, std::move(pointers), t.bytes, stream_);
  }

 private:
  static SdpaPointers pointers_of(const RunBatch& batch, const RunTensors& t) {
    auto* keys = t.kv.data<BFloat16>();
    return {{kQ, t.q.raw()},
            {kK, keys},
            {kV, values_behind(keys, batch.shape)},
            {kOut, t.out.raw()},
            {kLse, t.lse.raw()},
            {kQueryLengths, t.query_lengths.raw()},
            {kKeyLengths, t.key_lengths.raw()}};
  }
  Stream& stream_;
};

}  // namespace

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) {
    CudaRunBatchOps ops(stream);
    return forward_within_documents(args, ops, stream);
  }
  for (int64_t i = 0; i < args.shape.context.pieces(); ++i) forward(args, Piece(args.shape, i), stream);
}

// The late piece sees all keys that the early one does, so it goes first and writes their gradients; those of the early
// one are added. No query of the rank sees the keys behind the late piece.
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) {
    CudaRunBatchOps ops(stream);
    return backward_within_documents(args, ops, stream);
  }
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
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream,
                                     bool within_documents) {
  sdpa_check_supported(shape.queries.head_dim, dtype, Device::kCuda);
  int64_t bytes = 0;
  for (int64_t level = 0; within_documents && level < num_run_levels(shape); ++level) {
    bytes = std::max(bytes, batch_workspace_bytes(empty_run_batch(shape, level), dtype, stream));
  }
  if (within_documents) return bytes;
  ContextSdpaShape first = shape;
  first.context.rank = 0;
  bytes = piece_workspace_bytes(Piece(first, 1), stream);
  for (int64_t i = 0; i < shape.context.pieces(); ++i) {
    bytes = std::max(bytes, piece_workspace_bytes(Piece(shape, i), stream));
  }
  return early_d_kv_bytes(shape, dtype) + bytes;
}

}  // namespace octavo::cuda
