// Attention on GPUs (kernels/attention/sdpa.h). Each chunk of a rank's queries is one attention over the keys up to the
// end of the chunk. A whole sequence is one chunk. Heads of 64 and 128 use FlashAttention-3
// (kernels/flash_attention/flash_attention.h), other heads cuDNN (kernels/attention/sdpa_plans_cudnn.h). Only
// FlashAttention attends within documents.
#include <algorithm>

#include "core/error.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/sdpa_plans_cudnn.h"
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
  // Returns the number of tokens per sequence in the memory for this chunk's key gradients. The earlier of two chunks
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

// Queues a plan of cuDNN. The stream's workspace is used from byte `begin` on.
void execute(const SdpaPlan& plan, const SdpaGeometry& geometry, SdpaPointers& pointers, int64_t begin,
             Stream& stream) {
  stream.state<SdpaPlans>().execute(plan, pointers, geometry.shape, plan.workspace(begin, stream));
}

void forward(const SdpaForward& args, const Chunk& chunk, Stream& stream) {
  const SdpaGeometry geometry = chunk.geometry();
  SdpaPointers pointers = chunk.pointers(args);
  if constexpr (kHasFlashAttention) {
    if (flash_attends(geometry.shape)) return flash_forward(geometry, pointers, 0, stream);
  }
  execute(stream.state<SdpaPlans>().forward(geometry), geometry, pointers, 0, stream);
}

void backward(const SdpaBackward& args, const Chunk& chunk, const KeyRows& d_keys, Stream& stream) {
  const SdpaGeometry geometry = chunk.geometry();
  SdpaPointers pointers = chunk.pointers(args);
  pointers.insert({{kDOut, chunk.rows(args.d_out)},
                   {kDQ, chunk.rows(args.d_qkv)},
                   {kDK, keys_in(d_keys)},
                   {kDV, values_in(d_keys)}});
  const int64_t begin = early_d_kv_bytes(args.shape, args.qkv.dtype());
  if constexpr (kHasFlashAttention) {
    if (flash_attends(geometry.shape)) return flash_backward(geometry, pointers, begin, stream);
  }
  execute(stream.state<SdpaPlans>().backward(geometry, stream), geometry, pointers, begin, stream);
}

// Returns the size of the scratch of forward or backward, whichever is larger. Builds cuDNN's plans.
int64_t workspace_bytes(const SdpaGeometry& geometry, Stream& stream) {
  const SdpaShape& s = geometry.shape;
  if (flash_attends(s)) return flash_workspace_bytes(s, geometry.keys);
  SdpaPlans& plans = stream.state<SdpaPlans>();
  const int64_t bytes = plans.forward(geometry).workspace_bytes;
  if (s.seq_len == 1) return bytes;  // cuDNN has no backward for a single token.
  return std::max(bytes, plans.backward(geometry, stream).workspace_bytes);
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda, !args.documents.empty());
  if (!args.documents.empty()) {
    if constexpr (kHasFlashAttention) return flash_forward_within_documents(args, stream);
  }
  for (int64_t i = 0; i < args.shape.context.chunks(); ++i) {
    forward(args, Chunk(args.shape, i), stream);
  }
}

// The later chunk attends to all keys that the earlier chunk attends to. So the later chunk goes first and writes the
// gradients of its keys; the gradients of the earlier chunk are added. No query of this rank attends to keys after the
// later chunk.
void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  const SdpaShape& s = args.shape;
  sdpa_check_supported(s.head_dim, args.qkv.dtype(), Device::kCuda, !args.documents.empty());
  if (!args.documents.empty()) {
    if constexpr (kHasFlashAttention) return flash_backward_within_documents(args, stream);
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
  sdpa_check_supported(shape.head_dim, dtype, Device::kCuda, within_documents);
  if (within_documents) return document_workspace_bytes(shape, dtype);
  SdpaShape first = shape;
  first.context.rank = 0;
  const int64_t chunks = shape.context.chunks();
  int64_t bytes = workspace_bytes(Chunk(first, chunks - 1).geometry(), stream);
  for (int64_t i = 0; i < chunks; ++i) {
    bytes = std::max(bytes, workspace_bytes(Chunk(shape, i).geometry(), stream));
  }
  return early_d_kv_bytes(shape, dtype) + bytes;
}

}  // namespace octavo::cuda
