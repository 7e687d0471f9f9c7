#include "kernels/attention/run_batches.h"

#include <algorithm>

#include "kernels/attention/workspace_parts.h"

namespace octavo {

namespace {

int64_t keys_of_whole(const ContextSdpaShape& shape, int64_t level) {
  const int64_t parts = int64_t{1} << level;
  return (shape.whole_seq_len() + parts - 1) / parts;
}

// Levels of more keys than a piece has tokens, which come first.
int64_t num_long_levels(const ContextSdpaShape& shape) {
  int64_t levels = 0;
  while (keys_of_whole(shape, levels) > shape.piece_length()) ++levels;
  return levels;
}

// The rank's pieces as sequences of their own.
SdpaShape pieces_alone(const ContextSdpaShape& shape) {
  SdpaShape pieces = shape.queries;
  pieces.batch *= shape.context.pieces();
  pieces.seq_len = shape.piece_length();
  return pieces;
}

// Calls run(batch, tensors, queries, keys) for each batch, with the maps of its queries and of its keys.
template <typename Run>
void for_each_batch(const Documents& documents, const ContextSdpaShape& shape, DType dtype, RunBatchOps& ops,
                    const Stream& stream, Run run) {
  for (int64_t first = 0; first < documents.size();) {
    const RunBatch batch = run_batch(documents, first, shape);
    const RunTensors tensors(batch, dtype, stream.workspace(RunTensors(batch, dtype, nullptr).bytes));
    const Tensor list = documents.device.rows(first, first + batch.count);
    const PaddedRows queries{.shape = shape,
                             .documents = static_cast<const Document*>(list.raw()),
                             .count = batch.count,
                             .seq_len = batch.shape.seq_len};
    PaddedRows keys = queries;
    keys.seq_len = batch.keys;
    keys.of = PaddedRows::Of::kKeys;
    ops.padded_lengths(tensors.query_lengths, queries);
    ops.padded_lengths(tensors.key_lengths, keys);
    run(batch, tensors, queries, keys);
    first += batch.count;
  }
}

}  // namespace

int64_t num_run_levels(const ContextSdpaShape& shape) {
  return num_long_levels(shape) + num_padded_levels(pieces_alone(shape));
}

RunBatch empty_run_batch(const ContextSdpaShape& shape, int64_t level) {
  const int64_t long_levels = num_long_levels(shape);
  if (level >= long_levels) {
    const SdpaShape square = padded_shape(pieces_alone(shape), level - long_levels);
    return {.shape = square, .keys = square.seq_len};
  }
  SdpaShape one = pieces_alone(shape);
  one.batch = 1;
  return {.shape = one, .keys = keys_of_whole(shape, level)};
}

RunBatch run_batch(const Documents& documents, int64_t first, const ContextSdpaShape& shape) {
  const int64_t most_keys = documents.list[static_cast<size_t>(first)].keys();
  int64_t level = num_run_levels(shape) - 1;
  while (level > 0 && empty_run_batch(shape, level).keys < most_keys) --level;
  RunBatch batch = empty_run_batch(shape, level);
  batch.first = first;
  batch.count = std::min(batch.shape.batch, documents.size() - first);
  return batch;
}

RunTensors::RunTensors(const RunBatch& batch, DType dtype, void* memory) {
  WorkspaceParts parts(memory);
  const SdpaShape& shape = batch.shape;
  const int64_t kv_width = ContextSdpaShape{.queries = shape, .context = {}}.kv_width();
  for (Tensor* lengths : {&query_lengths, &key_lengths}) *lengths = parts.take(DType::kInt32, {shape.batch});
  for (Tensor* rows : {&q, &d_q, &out, &d_out})
    *rows = parts.take(dtype, {shape.batch * shape.seq_len, shape.out_width()});
  for (Tensor* rows : {&kv, &d_kv}) *rows = parts.take(dtype, {shape.batch * batch.keys, kv_width});
  lse = parts.take(DType::kFloat32, {shape.batch, shape.num_heads, shape.seq_len});
  bytes = parts.bytes();
}

void forward_within_documents(const ContextSdpaForward& args, RunBatchOps& ops, Stream& stream) {
  for_each_batch(args.documents, args.shape, args.qkv.dtype(), ops, stream,
                 [&](const RunBatch& batch, const RunTensors& t, const PaddedRows& queries, const PaddedRows& keys) {
                   ops.pad_rows(t.q, args.qkv, queries);
                   ops.pad_rows(t.kv, args.kv, keys);
                   ops.forward(batch, t);
                   ops.unpad_rows(args.out, t.out, queries);
                   ops.unpad_lse(args.lse, t.lse, queries);
                 });
}

void backward_within_documents(const ContextSdpaBackward& args, RunBatchOps& ops, Stream& stream) {
  stream.zero(args.d_kv);
  for_each_batch(args.documents, args.shape, args.qkv.dtype(), ops, stream,
                 [&](const RunBatch& batch, const RunTensors& t, const PaddedRows& queries, const PaddedRows& keys) {
                   ops.pad_rows(t.q, args.qkv, queries);
                   ops.pad_rows(t.kv, args.kv, keys);
                   ops.pad_rows(t.out, args.out, queries);
                   ops.pad_rows(t.d_out, args.d_out, queries);
                   ops.pad_lse(t.lse, args.lse, queries);
                   ops.backward(batch, t);
                   ops.unpad_rows(args.d_qkv, t.d_q, queries);
                   for (int64_t i = 0; i < args.shape.context.pieces(); ++i) {
                     ops.add_unpadded_rows(args.d_kv, t.d_kv, keys, i);
                   }
                 });
}

}  // namespace octavo
