// Attention on GPUs (kernels/attention/sdpa.h). Each chunk of a rank's queries is one attention
// (kernels/attention/attend.h) over the keys up to the end of the chunk. A whole sequence is one chunk. Within
// documents, FlashAttention reads the tokens in place (kernels/flash_attention/flash_documents.h), and cuDNN attends to
// batches of padded copies (kernels/attention/padded_documents.h).
#include <algorithm>

#include "core/error.h"
#include "kernels/attention/attend.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/padded_documents.h"
#include "kernels/flash_attention/flash_documents.h"
#include "kernels/math/sum_terms.h"

namespace octavo::cuda {

namespace {

// Returns the strides of sequences of `tokens` rows.
Strides strides(int64_t tokens, int64_t width) { return {tokens * width, width}; }

BFloat16* keys_in(const KeyRows& keys) { return keys.rows.data<BFloat16>() + keys.k_column; }
BFloat16* values_in(const KeyRows& keys) { return keys.rows.data<BFloat16>() + keys.v_column; }

// One of this rank's chunks of each sequence.
struct Chunk {
  Chunk(const SdpaShape& of, int64_t i) : shape(of), index(i) {}

  bool last() const { return index == shape.context.chunks() - 1; }
  int64_t num_keys() const { return (shape.context.chunk(index) + 1) * shape.chunk_length(); }
  // Returns the number of tokens per sequence for which the gradient of the keys has memory. The earlier of two chunks
  // attends to at most half of the sequence.
  int64_t d_kv_tokens() const { return last() ? shape.whole_seq_len() : shape.whole_seq_len() / 2; }
  SdpaGeometry geometry() const {
    const int64_t key_width = shape.context.size == 1 ? shape.qkv_width() : shape.kv_width();
    return {.shape = shape.chunk(),
            .keys = num_keys(),
            .q = strides(shape.seq_len, shape.qkv_width()),
            .kv = strides(shape.whole_seq_len(), key_width),
            .out = strides(shape.seq_len, shape.out_width()),
            .d_kv = strides(d_kv_tokens(), key_width)};
  }
  BFloat16* rows(const Tensor& tensor) const {
    return tensor.data<BFloat16>() + index * shape.chunk_length() * tensor.dim(1);
  }
  float* rows_of_lse(const Tensor& lse) const {
    return lse.data<float>() + index * shape.batch * shape.num_heads * shape.chunk_length();
  }
  template <typename Args>
  SdpaPointers pointers(const Args& args) const {
    const KeyRows keys(shape, args.qkv, args.kv);
    return {{kQ, rows(args.qkv)},
            {kK, keys_in(keys)},
            {kV, values_in(keys)},
            {kOut, rows(args.out)},
            {kLse, rows_of_lse(args.lse)}};
  }

  SdpaShape shape;
  int64_t index;
};

void backward(const SdpaBackward& args, const Chunk& chunk, const KeyRows& d_keys, Stream& stream) {
  SdpaPointers pointers = chunk.pointers(args);
  pointers.insert({{kDOut, chunk.rows(args.d_out)},
                   {kDQ, chunk.rows(args.d_qkv)},
                   {kDK, keys_in(d_keys)},
                   {kDV, values_in(d_keys)}});
  attend_backward(chunk.geometry(), SdpaLengths::kFull, std::move(pointers),
                  early_d_kv_bytes(args.shape, args.qkv.dtype()), stream);
}

int64_t workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream) {
  return std::max(attend_forward_workspace_bytes(geometry, lengths, stream),
                  attend_backward_workspace_bytes(geometry, lengths, stream));
}

SdpaLengths lengths_of(const PaddedBatch& batch) {
  return batch.packed ? SdpaLengths::kSquare : SdpaLengths::kAtTheEnd;
}

SdpaGeometry geometry_of(const PaddedBatch& batch) {
  const SdpaShape& s = batch.shape;
  const Strides keys = strides(batch.keys, batch.packed ? s.qkv_width() : s.kv_width());
  return {.shape = s,
          .keys = batch.keys,
          .q = strides(s.seq_len, batch.packed ? s.qkv_width() : s.out_width()),
          .kv = keys,
          .out = strides(s.seq_len, s.out_width()),
          .d_kv = keys};
}

class CudaPaddedOps : public PaddedOps {
 public:
  explicit CudaPaddedOps(Stream& stream) : stream_(stream) {}

  void padded_lengths(const Tensor& lengths, const PaddedRows& map) override {
    cuda::padded_lengths(lengths, map, stream_);
  }
  void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map) override {
    cuda::pad_rows(padded, rows, map, stream_);
  }
  void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map) override {
    cuda::unpad_rows(rows, padded, map, stream_);
  }
  void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t chunk) override {
    cuda::add_unpadded_rows(rows, padded, map, chunk, stream_);
  }
  void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map) override {
    cuda::pad_lse(padded, lse, map, stream_);
  }
  void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map) override {
    cuda::unpad_lse(lse, padded, map, stream_);
  }
  void forward(const PaddedBatch& batch, const PaddedTensors& t) override {
    attend_forward(geometry_of(batch), lengths_of(batch), pointers_of(batch, t), t.bytes, stream_);
  }
  void backward(const PaddedBatch& batch, const PaddedTensors& t) override {
    const KeyRows d_keys(batch.shape, batch.packed, t.d_qkv, t.d_kv);
    SdpaPointers pointers = pointers_of(batch, t);
    pointers.insert({{kDOut, t.d_out.raw()}, {kDQ, t.d_qkv.raw()}, {kDK, keys_in(d_keys)}, {kDV, values_in(d_keys)}});
    attend_backward(geometry_of(batch), lengths_of(batch), std::move(pointers), t.bytes, stream_);
  }

 private:
  static SdpaPointers pointers_of(const PaddedBatch& batch, const PaddedTensors& t) {
    const KeyRows keys(batch.shape, batch.packed, t.qkv, t.kv);
    return {{kQ, t.qkv.raw()},
            {kK, keys_in(keys)},
            {kV, values_in(keys)},
            {kOut, t.out.raw()},
            {kLse, t.lse.raw()},
            {kQueryLengths, t.query_lengths.raw()},
            {kKeyLengths, t.key_lengths.raw()}};
  }
  Stream& stream_;
};

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) {
    if constexpr (kHasFlashAttention) {
      if (flash_attends(args.shape)) return flash_forward_within_documents(args, stream);
    }
    CudaPaddedOps ops(stream);
    return forward_within_documents(args, ops, stream);
  }
  for (int64_t i = 0; i < args.shape.context.chunks(); ++i) {
    const Chunk chunk(args.shape, i);
    attend_forward(chunk.geometry(), SdpaLengths::kFull, chunk.pointers(args), 0, stream);
  }
}

// The later chunk attends to all keys that the earlier chunk attends to. So the later chunk goes first and writes the
// gradients of its keys; the gradients of the earlier chunk are added. No query of this rank attends to keys after the
// later chunk.
void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  const SdpaShape& s = args.shape;
  sdpa_check_supported(s.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) {
    if constexpr (kHasFlashAttention) {
      if (flash_attends(s)) return flash_backward_within_documents(args, stream);
    }
    CudaPaddedOps ops(stream);
    return backward_within_documents(args, ops, stream);
  }
  const Chunk late(s, s.context.chunks() - 1);
  backward(args, late, KeyRows(s, args.d_qkv, args.d_kv), stream);
  if (s.context.chunks() == 1) return;
  const Chunk early(s, 0);
  const Tensor early_d_kv(stream.workspace(early_d_kv_bytes(s, args.qkv.dtype())), args.qkv.dtype(),
                          {s.batch * early.d_kv_tokens(), s.kv_width()});
  backward(args, early, KeyRows(s, {}, early_d_kv), stream);
  const auto rows_of = [&](const Tensor& d_kv, int64_t sequence, int64_t begin, int64_t end) {
    const int64_t first = sequence * (d_kv.dim(0) / s.batch);
    return d_kv.rows(first + begin, first + end).view({(end - begin) * s.kv_width()});
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    stream.zero(rows_of(args.d_kv, b, late.num_keys(), s.whole_seq_len()));
    sum_terms({.out = rows_of(args.d_kv, b, 0, early.num_keys()),
               .terms = rows_of(early_d_kv, b, 0, early.num_keys()),
               .accumulate = true},
              stream);
  }
}

// The last queries of rank 0 attend to all keys and need the most scratch. Every rank allows for the scratch of these
// queries, so that the size is equal on all ranks.
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents) {
  sdpa_check_supported(shape.head_dim, dtype, Device::kCuda);
  if (within_documents && flash_attends(shape)) return document_workspace_bytes(shape, dtype);
  int64_t bytes = 0;
  for (int64_t level = 0; within_documents && level < num_padded_levels(shape); ++level) {
    const PaddedBatch batch = empty_padded_batch(shape, level);
    bytes = std::max(bytes, PaddedTensors(batch, dtype, nullptr).bytes +
                                workspace_bytes(geometry_of(batch), lengths_of(batch), stream));
  }
  if (within_documents) return bytes;
  SdpaShape first = shape;
  first.context.rank = 0;
  const int64_t chunks = shape.context.chunks();
  bytes = workspace_bytes(Chunk(first, chunks - 1).geometry(), SdpaLengths::kFull, stream);
  for (int64_t i = 0; i < chunks; ++i) {
    bytes = std::max(bytes, workspace_bytes(Chunk(shape, i).geometry(), SdpaLengths::kFull, stream));
  }
  return early_d_kv_bytes(shape, dtype) + bytes;
}

}  // namespace octavo::cuda
