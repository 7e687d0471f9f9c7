#include "kernels/attention/padded_documents.h"

#include <algorithm>

#include "core/workspace_parts.h"

namespace octavo {

namespace {

constexpr int64_t kTokensOfBatch = 8192;  // Number of tokens that keep a GPU busy.
constexpr int64_t kShortest = 64;         // Number of tokens in one tile of attention.
// Minimum length, because cuDNN's backward does not support padded sequences of one token.
constexpr int64_t kLeast = 2;

int64_t part_of(int64_t tokens, int64_t level) {
  const int64_t parts = int64_t{1} << level;
  return (tokens + parts - 1) / parts;
}

// Returns the number of levels (kernels/attention/padded_documents.h) for runs with more keys than a chunk has tokens.
// These levels have the lowest numbers.
int64_t num_long_levels(const SdpaShape& shape) {
  int64_t levels = 0;
  while (part_of(shape.whole_seq_len(), levels) > shape.chunk_length()) ++levels;
  return levels;
}

// Returns the number of tokens per sequence in a square batch of this level.
int64_t square_length(const SdpaShape& shape, int64_t level) {
  return std::max(part_of(shape.chunk_length(), level), kLeast);
}

// Copies qkv and kv of each batch into padded tensors, then calls run(batch, tensors, queries, keys). `queries` and
// `keys` map the padded rows to the rows that they are copies of.
template <typename Args, typename Run>
void for_each_batch(const Args& args, PaddedOps& ops, const Stream& stream, Run run) {
  const DType dtype = args.qkv.dtype();
  for (int64_t first = 0; first < args.documents.size();) {
    const PaddedBatch batch = padded_batch(args.documents, first, args.shape);
    const PaddedTensors tensors(batch, dtype, stream.workspace(PaddedTensors(batch, dtype, nullptr).bytes));
    const Tensor list = args.documents.device.rows(first, first + batch.count);
    const PaddedRows queries{.shape = args.shape,
                             .documents = static_cast<const Document*>(list.raw()),
                             .count = batch.count,
                             .seq_len = batch.shape.seq_len};
    PaddedRows keys = queries;
    keys.seq_len = batch.keys;
    keys.of = PaddedRows::Of::kKeys;
    ops.padded_lengths(tensors.query_lengths, queries);
    if (!batch.packed) ops.padded_lengths(tensors.key_lengths, keys);
    ops.pad_rows(tensors.qkv, args.qkv, queries);
    if (!batch.packed) ops.pad_rows(tensors.kv, args.kv, keys);
    run(batch, tensors, queries, keys);
    first += batch.count;
  }
}

}  // namespace

int64_t num_padded_levels(const SdpaShape& shape) {
  int64_t levels = 1;
  while (square_length(shape, levels) >= kShortest) ++levels;
  return num_long_levels(shape) + levels;
}

PaddedBatch empty_padded_batch(const SdpaShape& shape, int64_t level) {
  PaddedBatch batch{.shape = shape.chunk(), .packed = shape.context.size == 1};
  const int64_t long_levels = num_long_levels(shape);
  if (level < long_levels) {
    batch.shape.batch = 1;
    batch.keys = part_of(shape.whole_seq_len(), level);
    return batch;
  }
  const int64_t chunks = shape.batch * shape.context.chunks();
  const int64_t rows = std::clamp<int64_t>(kTokensOfBatch / shape.chunk_length(), 1, chunks);
  batch.shape.batch = rows << (level - long_levels);
  batch.shape.seq_len = batch.keys = square_length(shape, level - long_levels);
  return batch;
}

PaddedBatch padded_batch(const Documents& documents, int64_t first, const SdpaShape& shape) {
  PaddedBatch best;
  for (int64_t level = num_padded_levels(shape) - 1; level >= 0; --level) {
    PaddedBatch batch = empty_padded_batch(shape, level);
    const int64_t most = std::min(batch.shape.batch, documents.size() - first);
    const auto rest = documents.list.subspan(static_cast<size_t>(first), static_cast<size_t>(most));
    const auto too_long = [&](const Document& run) { return run.keys() > batch.keys; };
    batch.first = first;
    batch.count = std::find_if(rest.begin(), rest.end(), too_long) - rest.begin();
    if (batch.count > best.count) best = batch;
  }
  return best;
}

PaddedTensors::PaddedTensors(const PaddedBatch& batch, DType dtype, void* memory) {
  WorkspaceParts parts(memory);
  const SdpaShape& s = batch.shape;
  const int64_t tokens = s.batch * s.seq_len;
  query_lengths = parts.take(DType::kInt32, {s.batch});
  key_lengths = batch.packed ? query_lengths : parts.take(DType::kInt32, {s.batch});
  for (Tensor* rows : {&qkv, &d_qkv}) *rows = parts.take(dtype, {tokens, batch.packed ? s.qkv_width() : s.out_width()});
  for (Tensor* rows : {&out, &d_out}) *rows = parts.take(dtype, {tokens, s.out_width()});
  for (Tensor* rows : {&kv, &d_kv}) {
    if (!batch.packed) *rows = parts.take(dtype, {s.batch * batch.keys, s.kv_width()});
  }
  lse = parts.take(DType::kFloat32, {s.batch, s.num_heads, s.seq_len});
  bytes = parts.bytes();
}

void forward_within_documents(const SdpaForward& args, PaddedOps& ops, Stream& stream) {
  for_each_batch(args, ops, stream,
                 [&](const PaddedBatch& batch, const PaddedTensors& t, const PaddedRows& queries, const PaddedRows&) {
                   ops.forward(batch, t);
                   ops.unpad_rows(args.out, t.out, queries);
                   ops.unpad_lse(args.lse, t.lse, queries);
                 });
}

void backward_within_documents(const SdpaBackward& args, PaddedOps& ops, Stream& stream) {
  if (args.shape.context.size > 1) stream.zero(args.d_kv);
  for_each_batch(
      args, ops, stream,
      [&](const PaddedBatch& batch, const PaddedTensors& t, const PaddedRows& queries, const PaddedRows& keys) {
        ops.pad_rows(t.out, args.out, queries);
        ops.pad_rows(t.d_out, args.d_out, queries);
        ops.pad_lse(t.lse, args.lse, queries);
        ops.backward(batch, t);
        ops.unpad_rows(args.d_qkv, t.d_qkv, queries);
        for (int64_t i = 0; !batch.packed && i < args.shape.context.chunks(); ++i) {
          ops.add_unpadded_rows(args.d_kv, t.d_kv, keys, i);
        }
      });
}

}  // namespace octavo
