#include <cuda_runtime_api.h>
#include <flash.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cuda_backend.h"
#include "core/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/flash_documents.h"
#include "kernels/flash_attention/kernels.h"
#include "kernels/flash_attention/ordered_kernels.h"
#include "kernels/math/sum_terms.h"

// FlashAttention calls this function before forward within documents, unless the parameters of forward say that the
// schedule exists. flash_forward_within_documents() passes such parameters, so this function is never called.
void prepare_varlen_num_blocks(Flash_fwd_params& /*params*/, cudaStream_t /*stream*/, bool /*packgqa*/, int /*blockM*/,
                               int /*blockN*/, bool /*enable_pdl*/) {
  throw octavo::Error("sdpa: forward within documents has no schedule; please report this as a bug");
}

namespace octavo::cuda {

namespace {

// Sets the parameters that both passes need.
void set_common(Flash_fwd_params& params, const SdpaGeometry& g, const SdpaPointers& pointers, const Stream& stream) {
  const SdpaShape& s = g.shape;
  params.q_ptr = pointers.at(kQ);
  params.k_ptr = pointers.at(kK);
  params.v_ptr = pointers.at(kV);
  params.o_ptr = pointers.at(kOut);
  params.softmax_lse_ptr = pointers.at(kLse);
  params.q_batch_stride = g.q.sequence;
  params.q_row_stride = g.q.token;
  params.k_batch_stride = params.v_batch_stride = g.kv.sequence;
  params.k_row_stride = params.v_row_stride = g.kv.token;
  params.o_batch_stride = g.out.sequence;
  params.o_row_stride = g.out.token;
  params.q_head_stride = params.k_head_stride = params.v_head_stride = params.o_head_stride = s.head_dim;
  params.v_dim_stride = 1;

  params.b = params.b_k = static_cast<int>(s.batch);
  params.h = static_cast<int>(s.num_heads);
  params.h_k = static_cast<int>(s.num_kv_heads);
  params.seqlen_q = static_cast<int>(s.seq_len);
  params.seqlen_k = static_cast<int>(g.keys);
  params.total_q = static_cast<int>(s.batch * s.seq_len);
  params.total_k = static_cast<int>(s.batch * g.keys);
  params.d = params.d_rounded = params.dv = params.dv_rounded = static_cast<int>(s.head_dim);
  params.scale_softmax = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  params.window_size_left = static_cast<int>(g.keys) - 1;
  params.window_size_right = 0;
  params.num_splits = 1;
  params.num_sm = stream.multiprocessors();
  params.is_bf16 = true;
  params.is_causal = true;
}

// Sets the parameters that only backward needs.
void set_backward(Flash_bwd_params& params, const SdpaGeometry& g, const SdpaPointers& pointers,
                  const FlashBackwardTensors& scratch, const Stream& stream) {
  params.do_ptr = pointers.at(kDOut);
  params.do_batch_stride = params.o_batch_stride;
  params.do_row_stride = params.o_row_stride;
  params.dq_ptr = pointers.at(kDQ);
  params.dq_batch_stride = params.q_batch_stride;
  params.dq_row_stride = params.q_row_stride;
  params.dk_ptr = pointers.at(kDK);
  params.dv_ptr = pointers.at(kDV);
  params.dk_batch_stride = params.dv_batch_stride = g.d_kv.sequence;
  params.dk_row_stride = params.dv_row_stride = g.d_kv.token;
  params.do_head_stride = params.dq_head_stride = params.dk_head_stride = params.dv_head_stride = g.shape.head_dim;

  params.dq_accum_ptr = scratch.d_q.raw();
  params.dk_accum_ptr = scratch.d_k.raw();
  params.dv_accum_ptr = scratch.d_v.raw();
  params.dsoftmax_sum = scratch.d.raw();
  params.softmax_lse_log2_ptr = scratch.lse.raw();
  params.dq_semaphore = scratch.turns_of_queries.data<int32_t>();
  params.dk_semaphore = scratch.turns_of_keys.data<int32_t>();
  params.dv_semaphore = scratch.turns_of_values.data<int32_t>();
  params.deterministic = stream.deterministic();
}

template <bool kVarlen>
void run_forward(Flash_fwd_params& params, const Stream& stream) {
  auto* run = params.d == 64 ? run_flash_forward<64, kVarlen> : run_flash_forward<128, kVarlen>;
  run(params, static_cast<cudaStream_t>(stream.native()));
}

template <bool kVarlen>
void run_backward(Flash_bwd_params& params, const Stream& stream) {
  const auto run = [&](auto* kernels) { kernels(params, static_cast<cudaStream_t>(stream.native())); };
  if (params.d == 64) {
    run(params.deterministic ? run_flash_ordered_backward<64, kVarlen> : run_flash_backward<64, kVarlen>);
  } else {
    run(params.deterministic ? run_flash_ordered_backward<128, kVarlen> : run_flash_backward<128, kVarlen>);
  }
}

// Checks the limits of FlashAttention. The number of sequences is a dimension of the grid, and FlashAttention stores
// `elements`, a number of elements of d_q or d_k, as int.
void check_sizes(const SdpaShape& s, int64_t elements) {
  constexpr int64_t kMaxBatch = 65535;
  CHECK(
      s.batch <= kMaxBatch && elements <= std::numeric_limits<int>::max(),
      "sdpa: {} sequences of {} tokens with {} heads of {} are too large for FlashAttention; use smaller micro-batches",
      s.batch, s.seq_len, s.num_heads, s.head_dim);
}

// Checks sequences of equal length. FlashAttention uses the number of elements per sequence only if there are several.
void check_sequences(const SdpaGeometry& g) {
  const SdpaShape& s = g.shape;
  constexpr int64_t kTile = 128;
  const auto rounded = [](int64_t rows) { return num_tiles(rows, kTile) * kTile; };
  const int64_t of_queries = s.num_heads * rounded(s.seq_len) * s.head_dim;
  const int64_t of_keys = s.num_kv_heads * rounded(g.keys) * s.head_dim;
  check_sizes(s, s.batch == 1 ? 0 : std::max(of_queries, of_keys));
}

// Returns the stream's workspace from byte `begin` on.
void* workspace(int64_t begin, int64_t bytes, const Stream& stream) {
  return static_cast<char*>(stream.workspace(begin + bytes)) + begin;
}

void zero(const Tensor& tensor, const Stream& stream) { zero_async(tensor.raw(), tensor.bytes(), stream.native()); }

// ---- Within documents

// Describes a launch as an attention of as many sequences as it has documents, each as long as the longest.
SdpaGeometry geometry_of(const DocumentLaunch& launch, const SdpaShape& s) {
  const int64_t key_width = s.context.size == 1 ? s.qkv_width() : s.kv_width();
  SdpaShape documents = s.chunk();
  documents.batch = launch.count;
  documents.seq_len = launch.most_queries;
  return {.shape = documents,
          .keys = launch.most_keys,
          .q = {.token = s.qkv_width()},
          .kv = {.token = key_width},
          .out = {.token = s.out_width()},
          .d_kv = {.token = key_width}};
}

BFloat16* row_of(const Tensor& tensor, int64_t row, int64_t column = 0) {
  return tensor.data<BFloat16>() + row * tensor.dim(1) + column;
}

template <typename Args>
SdpaPointers pointers_of(const DocumentLaunch& launch, const Args& args) {
  const KeyRows keys(args.shape, args.qkv, args.kv);
  const Document window{.begin = static_cast<int32_t>(launch.window)};
  return {{kQ, row_of(args.qkv, launch.window)},
          {kK, row_of(keys.rows, launch.first_key, keys.k_column)},
          {kV, row_of(keys.rows, launch.first_key, keys.v_column)},
          {kOut, row_of(args.out, launch.window)},
          {kLse, args.lse.template data<float>() + args.shape.first_lse(window, 0)}};
}

// Sets the parameters of the documents of a launch after set_common().
void set_documents(Flash_fwd_params& params, const DocumentLaunch& launch, const DocumentArrays& arrays) {
  params.total_q = static_cast<int>(launch.num_queries);
  params.total_k = static_cast<int>(launch.num_keys);
  params.cu_seqlens_q = arrays.query_begin.data<int32_t>();
  params.seqused_q = arrays.query_length.data<int32_t>();
  params.cu_seqlens_k = arrays.key_begin.data<int32_t>();
  params.seqused_k = arrays.key_length.data<int32_t>();
}

void check_launch(const FlashBackwardSize& size, const SdpaShape& s) {
  check_sizes(s, std::max(size.query_rows, size.key_rows) * s.head_dim);
}

// Writes the gradients of the launch's keys into rows of d_keys from `first_key` on.
void backward(const SdpaBackward& args, const DocumentLaunch& launch, const DocumentBackwardTensors& tensors,
              const KeyRows& d_keys, int64_t first_key, Stream& stream) {
  const SdpaShape& s = args.shape;
  const FlashBackwardSize size = backward_size(s, launch);
  check_launch(size, s);
  const int64_t bytes = FlashBackwardTensors(s, size, nullptr).bytes;
  const FlashBackwardTensors sums(s, size, workspace(tensors.bytes, bytes, stream));
  zero(sums.zeros, stream);
  schedule_backward(tensors, launch, s, args.documents.device, stream);

  SdpaPointers pointers = pointers_of(launch, args);
  pointers.insert({{kDOut, row_of(args.d_out, launch.window)},
                   {kDQ, row_of(args.d_qkv, launch.window)},
                   {kDK, row_of(d_keys.rows, first_key, d_keys.k_column)},
                   {kDV, row_of(d_keys.rows, first_key, d_keys.v_column)}});
  const SdpaGeometry geometry = geometry_of(launch, s);
  Flash_bwd_params params = {};
  set_common(params, geometry, pointers, stream);
  set_documents(params, launch, tensors.documents);
  set_backward(params, geometry, pointers, sums, stream);
  // DocumentTileScheduler reads these two.
  params.tile_count_semaphore = tensors.tiles.data<int32_t>();
  params.num_sm = static_cast<int>(launch.key_tiles * s.num_heads);
  run_backward<true>(params, stream);
}

}  // namespace

void flash_forward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream) {
  check_sequences(geometry);
  Flash_fwd_params params = {};
  set_common(params, geometry, pointers, stream);
  const FlashForwardTensors scratch(workspace(begin, FlashForwardTensors(nullptr).bytes, stream));
  zero(scratch.tiles, stream);
  params.tile_count_semaphore = scratch.tiles.data<int32_t>();
  run_forward<false>(params, stream);
}

void flash_backward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream) {
  const SdpaShape& s = geometry.shape;
  check_sequences(geometry);
  const FlashBackwardSize size = flash_backward_size(s, geometry.keys);
  const int64_t bytes = FlashBackwardTensors(s, size, nullptr).bytes;
  const FlashBackwardTensors scratch(s, size, workspace(begin, bytes, stream));
  zero(scratch.zeros, stream);
  Flash_bwd_params params = {};
  set_common(params, geometry, pointers, stream);
  set_backward(params, geometry, pointers, scratch, stream);
  params.seqlen_q_rounded = static_cast<int>(size.query_rows / s.batch);
  params.seqlen_k_rounded = static_cast<int>(size.key_rows / s.batch);
  run_backward<false>(params, stream);
}

void flash_forward_within_documents(const SdpaForward& args, Stream& stream) {
  const DocumentForwardTensors tensors(stream.workspace(DocumentForwardTensors(nullptr).bytes));
  for (const DocumentLaunch& launch : document_launches(args.documents.list, args.shape, kMostDocumentsPerLaunch)) {
    check_launch(backward_size(args.shape, launch), args.shape);
    schedule_forward(tensors, launch, args.shape, args.documents.device, stream);
    Flash_fwd_params params = {};
    set_common(params, geometry_of(launch, args.shape), pointers_of(launch, args), stream);
    set_documents(params, launch, tensors.documents);
    params.skip_scheduler_metadata_computation = true;
    params.varlen_batch_idx_ptr = tensors.order.data<int32_t>();
    params.num_m_blocks_ptr = tensors.query_tiles.data<int32_t>();
    params.num_nheads_in_l2_ptr = tensors.heads_at_once.data<int32_t>();
    params.tile_count_semaphore = tensors.next_tile.data<int32_t>();
    run_forward<true>(params, stream);
  }
}

void flash_backward_within_documents(const SdpaBackward& args, Stream& stream) {
  const SdpaShape& s = args.shape;
  const DType dtype = args.qkv.dtype();
  const DocumentBackwardTensors tensors(s, dtype, stream.workspace(DocumentBackwardTensors(s, dtype, nullptr).bytes));
  const std::vector<DocumentLaunch> launches = document_launches(args.documents.list, s, documents_per_backward(s));
  const KeyRows d_keys(s, args.d_qkv, args.d_kv);
  if (s.context.size > 1) stream.zero(args.d_kv);
  const auto chunk_of = [&](const DocumentLaunch& launch) {
    return s.chunk_of({.begin = static_cast<int32_t>(launch.window)});
  };
  const int64_t late = s.context.chunks() - 1;
  for (const DocumentLaunch& launch : launches) {
    if (chunk_of(launch) == late) backward(args, launch, tensors, d_keys, launch.first_key, stream);
  }
  for (const DocumentLaunch& launch : launches) {
    if (chunk_of(launch) == late) continue;
    backward(args, launch, tensors, KeyRows(s, {}, tensors.early_d_kv), 0, stream);
    const auto elements = [&](const Tensor& d_kv, int64_t first) {
      return d_kv.rows(first, first + launch.num_keys).view({launch.num_keys * s.kv_width()});
    };
    sum_terms(
        {.out = elements(args.d_kv, launch.first_key), .terms = elements(tensors.early_d_kv, 0), .accumulate = true},
        stream);
  }
}

}  // namespace octavo::cuda
