#include "kernels/attention/context_sdpa.h"

#include <algorithm>

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention/run_batches.h"
#include "kernels/attention/sdpa_cpu.h"
#include "kernels/attention/workspace_parts.h"

namespace octavo {

namespace cuda {
void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream);
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream);
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream, bool within_documents);
}  // namespace cuda

namespace {

// Runs come in the order that batches of them want, and no copy of one reaches beyond its piece or its sequence.
void check_documents(const ContextSdpaShape& shape, const Documents& documents, const Stream& stream) {
  if (documents.empty()) return;
  const int64_t tokens = shape.queries.batch * shape.queries.seq_len;
  int64_t in_documents = 0;
  for (size_t i = 0; i < documents.list.size(); ++i) {
    const Document& run = documents.list[i];
    const bool is_run = run.begin >= 0 && run.begin < tokens && run.length > 0 && run.before >= 0;
    const bool fits = is_run && run.begin % shape.piece_length() + run.length <= shape.piece_length() &&
                      (run.before == 0 || run.begin % shape.piece_length() == 0) &&
                      shape.first_key(run) >= run.begin / shape.queries.seq_len * shape.whole_seq_len();
    CHECK(fits && (i == 0 || run.keys() <= documents.list[i - 1].keys()),
          "context_sdpa: document {} has {} tokens from token {} and {} before, expected some of a piece of {}, and no "
          "more than the one before",
          i, run.length, run.begin, run.before, shape.piece_length());
    in_documents += run.length;
  }
  CHECK(in_documents == tokens, "context_sdpa: documents of {} tokens, expected all {}", in_documents, tokens);
  if (stream.is_cuda()) {
    expect_tensor(documents.device, "context_sdpa documents", DType::kInt32, {documents.size(), kNumbersOfDocument});
  }
}

void check_shares(const ContextSdpaShape& shape, const ContextSdpaForward& args, const Stream& stream) {
  const SdpaShape& q = shape.queries;
  const int64_t pieces = shape.context.pieces();
  const int64_t tokens = q.batch * q.seq_len;
  CHECK(q.num_kv_heads > 0 && q.num_heads % q.num_kv_heads == 0 && q.seq_len % pieces == 0,
        "context_sdpa: {} query heads, {} kv heads, {} tokens in {} pieces", q.num_heads, q.num_kv_heads, q.seq_len,
        pieces);
  const bool are_tiles = pieces == 2 && shape.piece_length() % kContextPieceUnit == 0;
  CHECK(!stream.is_cuda() || are_tiles || !args.documents.empty(),
        "context_sdpa: {} pieces of {} tokens, expected two of a multiple of {} on a GPU", pieces, shape.piece_length(),
        kContextPieceUnit);
  expect_tensor(args.qkv, "context_sdpa qkv", args.qkv.dtype(), {tokens, q.qkv_width()});
  expect_tensor(args.kv, "context_sdpa kv", args.qkv.dtype(), {tokens * shape.context.size, shape.kv_width()});
  expect_tensor(args.out, "context_sdpa out", args.qkv.dtype(), {tokens, q.out_width()});
  expect_tensor(args.lse, "context_sdpa lse", DType::kFloat32, {pieces * q.batch, q.num_heads, q.seq_len / pieces});
  check_documents(shape, args.documents, stream);
}

// Of the scores that the rank's queries have, half of the square that they end in.
double flops_of_share(const ContextSdpaShape& shape, const Documents& documents, int products) {
  const auto of = [](int64_t value) { return static_cast<double>(value); };
  const auto scores_of = [&](int64_t length, int64_t before) { return of(length) * (2 * of(before) + of(length)); };
  const SdpaShape& q = shape.queries;
  double scores = 0;
  for (const Document& document : documents.list) scores += scores_of(document.length, document.before);
  const int64_t length = shape.piece_length();
  for (int64_t i = 0; documents.empty() && i < shape.context.pieces(); ++i) {
    scores += of(q.batch) * scores_of(length, shape.context.piece(i) * length);
  }
  return products * scores * of(q.num_heads * q.head_dim);
}

int64_t planned_workspace_bytes_within_documents(const ContextSdpaShape& shape, DType dtype, bool deterministic) {
  int64_t bytes = 0;
  for (int64_t level = 0; level < num_run_levels(shape); ++level) {
    const RunBatch batch = empty_run_batch(shape, level);
    bytes = std::max(bytes, RunTensors(batch, dtype, nullptr).bytes +
                                sdpa_planned_workspace_bytes(batch.shape, batch.keys, deterministic));
  }
  return bytes;
}

}  // namespace

int64_t early_d_kv_bytes(const ContextSdpaShape& shape, DType dtype) {
  WorkspaceParts parts(nullptr);
  parts.take(dtype, {shape.queries.batch * shape.whole_seq_len() / 2, shape.kv_width()});
  return parts.bytes();
}

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream) {
  check_shares(args.shape, args, stream);
  const OpTimer timer(stream, {.name = "sdpa_forward",
                               .flops = flops_of_share(args.shape, args.documents, 2),
                               .bound = OpBound::kAttentionForward});
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::context_sdpa_forward(args, stream);
  }
  cpu::context_sdpa_forward(args, stream);
}

void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream) {
  check_shares(args.shape,
               {.shape = args.shape,
                .out = args.out,
                .lse = args.lse,
                .qkv = args.qkv,
                .kv = args.kv,
                .documents = args.documents},
               stream);
  expect_tensor(args.d_qkv, "context_sdpa d_qkv", args.qkv.dtype(), {args.qkv.dim(0), args.qkv.dim(1)});
  expect_tensor(args.d_kv, "context_sdpa d_kv", args.qkv.dtype(), {args.kv.dim(0), args.kv.dim(1)});
  expect_tensor(args.d_out, "context_sdpa d_out", args.qkv.dtype(), {args.out.dim(0), args.out.dim(1)});
  const OpTimer timer(stream, {.name = "sdpa_backward",
                               .flops = flops_of_share(args.shape, args.documents, 5),
                               .bound = OpBound::kAttentionBackward});
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::context_sdpa_backward(args, stream);
  }
  cpu::context_sdpa_backward(args, stream);
}

int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream,
                                     bool within_documents) {
  if (stream.is_planned() && stream.is_cuda() && within_documents) {
    return planned_workspace_bytes_within_documents(shape, dtype, stream.deterministic());
  }
  if (stream.is_planned()) {
    SdpaShape piece = shape.queries;
    piece.seq_len = shape.piece_length();
    const int64_t keys = shape.whole_seq_len();
    return early_d_kv_bytes(shape, dtype) + (flash_attends(piece)
                                                 ? flash_workspace_bytes(piece, keys)
                                                 : sdpa_planned_workspace_bytes(piece, keys, stream.deterministic()));
  }
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::context_sdpa_workspace_bytes(shape, dtype, stream, within_documents);
  }
  return cpu::context_sdpa_workspace_bytes(shape, dtype);
}

}  // namespace octavo
