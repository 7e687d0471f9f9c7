// Attention of whole sequences on GPUs (kernels/attention/attend.h). Documents are copied into batches of sequences of
// equal length, with padding that attention is told of (kernels/attention/padded_documents.h).
#include <algorithm>

#include "core/error.h"
#include "kernels/attention/attend.h"
#include "kernels/attention/padded_documents.h"

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

  SdpaLengths kind() const { return lengths == nullptr ? SdpaLengths::kFull : SdpaLengths::kSquare; }
};

SdpaPointers with_lengths(SdpaPointers pointers, const Sequences& sequences) {
  if (sequences.lengths != nullptr) {
    pointers.insert({{kQueryLengths, sequences.lengths}, {kKeyLengths, sequences.lengths}});
  }
  return pointers;
}

void forward(const SdpaForward& args, const Sequences& sequences, Stream& stream) {
  const Heads qkv(args.qkv, args.shape);
  const SdpaPointers pointers{{kQ, qkv.q}, {kK, qkv.k}, {kV, qkv.v}, {kOut, args.out.raw()}, {kLse, args.lse.raw()}};
  attend_forward(packed_geometry(args.shape), sequences.kind(), with_lengths(pointers, sequences),
                 sequences.workspace_begin, stream);
}

void backward(const SdpaBackward& args, const Sequences& sequences, Stream& stream) {
  const Heads qkv(args.qkv, args.shape);
  const Heads d_qkv(args.d_qkv, args.shape);
  const SdpaPointers pointers{{kQ, qkv.q},
                              {kK, qkv.k},
                              {kV, qkv.v},
                              {kOut, args.out.raw()},
                              {kLse, args.lse.raw()},
                              {kDOut, args.d_out.raw()},
                              {kDQ, d_qkv.q},
                              {kDK, d_qkv.k},
                              {kDV, d_qkv.v}};
  attend_backward(packed_geometry(args.shape), sequences.kind(), with_lengths(pointers, sequences),
                  sequences.workspace_begin, stream);
}

// Calls run(shape, tensors, map) for each batch of documents, behind which attention may use the workspace.
template <typename Run>
void for_padded_batches(const Documents& documents, const SdpaShape& shape, const Tensor& qkv, Stream& stream,
                        Run run) {
  for (int64_t first = 0; first < documents.size();) {
    const PaddedBatch batch = padded_batch(documents, first, shape);
    const int64_t bytes = PaddedTensors(batch.shape, qkv.dtype(), nullptr).bytes;
    const PaddedTensors padded(batch.shape, qkv.dtype(), stream.workspace(bytes));
    const Tensor list = documents.device.rows(first, first + batch.count);
    const PaddedRows map{.shape = {.queries = shape, .context = {}},
                         .documents = static_cast<const Document*>(list.raw()),
                         .count = batch.count,
                         .seq_len = batch.shape.seq_len};
    padded_lengths(padded.lengths, map, stream);
    pad_rows(padded.qkv, qkv, map, stream);
    run(batch.shape, padded, map);
    first += batch.count;
  }
}

void forward_within_documents(const SdpaForward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const PaddedRows& map) {
                       forward(
                           {.shape = shape, .out = padded.out, .lse = padded.lse, .qkv = padded.qkv, .documents = {}},
                           {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.out, padded.out, map, stream);
                       unpad_lse(args.lse, padded.lse, map, stream);
                     });
}

void backward_within_documents(const SdpaBackward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const PaddedRows& map) {
                       pad_rows(padded.out, args.out, map, stream);
                       pad_rows(padded.d_out, args.d_out, map, stream);
                       pad_lse(padded.lse, args.lse, map, stream);
                       backward({.shape = shape,
                                 .d_qkv = padded.d_qkv,
                                 .d_out = padded.d_out,
                                 .out = padded.out,
                                 .lse = padded.lse,
                                 .qkv = padded.qkv,
                                 .documents = {}},
                                {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.d_qkv, padded.d_qkv, map, stream);
                     });
}

int64_t workspace_bytes(const SdpaShape& shape, SdpaLengths lengths, Stream& stream) {
  const SdpaGeometry geometry = packed_geometry(shape);
  return std::max(attend_forward_workspace_bytes(geometry, lengths, stream),
                  attend_backward_workspace_bytes(geometry, lengths, stream));
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
  if (!within_documents) return workspace_bytes(shape, SdpaLengths::kFull, stream);
  int64_t bytes = 0;
  for (int64_t level = 0; level < num_padded_levels(shape); ++level) {
    const SdpaShape padded = padded_shape(shape, level);
    bytes = std::max(
        bytes, PaddedTensors(padded, dtype, nullptr).bytes + workspace_bytes(padded, SdpaLengths::kSquare, stream));
  }
  return bytes;
}

}  // namespace octavo::cuda
