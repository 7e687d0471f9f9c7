#include <cuda_runtime_api.h>
#include <flash.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cuda_backend.h"
#include "core/error.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention/flash_kernels.h"
#include "kernels/attention/flash_ordered_kernels.h"

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

// Checks the limits of FlashAttention. The number of sequences is a dimension of the grid, and FlashAttention stores
// the number of elements of d_q and of d_k of one sequence, over all heads, as int.
void check_sizes(const SdpaGeometry& g) {
  const SdpaShape& s = g.shape;
  constexpr int64_t kMaxBatch = 65535, kTile = 128;
  const auto rounded = [](int64_t rows) { return (rows + kTile - 1) / kTile * kTile; };
  const int64_t of_queries = s.num_heads * rounded(s.seq_len) * s.head_dim;
  const int64_t of_keys = s.num_kv_heads * rounded(g.keys) * s.head_dim;
  CHECK(
      s.batch <= kMaxBatch && (s.batch == 1 || std::max(of_queries, of_keys) <= std::numeric_limits<int>::max()),
      "sdpa: {} sequences of {} tokens with {} heads of {} are too large for FlashAttention; use smaller micro-batches",
      s.batch, s.seq_len, s.num_heads, s.head_dim);
}

// Returns the stream's workspace from byte `begin` on.
void* workspace(int64_t begin, int64_t bytes, const Stream& stream) {
  return static_cast<char*>(stream.workspace(begin + bytes)) + begin;
}

void zero(const Tensor& tensor, const Stream& stream) { zero_async(tensor.raw(), tensor.bytes(), stream.native()); }

}  // namespace

void flash_forward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream) {
  check_sizes(geometry);
  Flash_fwd_params params = {};
  set_common(params, geometry, pointers, stream);
  const FlashForwardTensors scratch(workspace(begin, FlashForwardTensors(nullptr).bytes, stream));
  zero(scratch.tiles, stream);
  params.tile_count_semaphore = scratch.tiles.data<int32_t>();
  auto* run = geometry.shape.head_dim == 64 ? run_flash_forward<64> : run_flash_forward<128>;
  run(params, static_cast<cudaStream_t>(stream.native()));
}

void flash_backward(const SdpaGeometry& geometry, const SdpaPointers& pointers, int64_t begin, Stream& stream) {
  const SdpaShape& s = geometry.shape;
  check_sizes(geometry);
  Flash_bwd_params params = {};
  set_common(params, geometry, pointers, stream);
  params.do_ptr = pointers.at(kDOut);
  params.do_batch_stride = params.o_batch_stride;
  params.do_row_stride = params.o_row_stride;
  params.dq_ptr = pointers.at(kDQ);
  params.dq_batch_stride = params.q_batch_stride;
  params.dq_row_stride = params.q_row_stride;
  params.dk_ptr = pointers.at(kDK);
  params.dv_ptr = pointers.at(kDV);
  params.dk_batch_stride = params.dv_batch_stride = geometry.d_kv.sequence;
  params.dk_row_stride = params.dv_row_stride = geometry.d_kv.token;
  params.do_head_stride = params.dq_head_stride = params.dk_head_stride = params.dv_head_stride = s.head_dim;

  const int64_t bytes = FlashBackwardTensors(s, geometry.keys, nullptr).bytes;
  const FlashBackwardTensors scratch(s, geometry.keys, workspace(begin, bytes, stream));
  zero(scratch.zeros, stream);
  params.seqlen_q_rounded = static_cast<int>(scratch.d.dim(2));
  params.seqlen_k_rounded = static_cast<int>(scratch.d_k.dim(2) / s.head_dim);
  params.dq_accum_ptr = scratch.d_q.raw();
  params.dk_accum_ptr = scratch.d_k.raw();
  params.dv_accum_ptr = scratch.d_v.raw();
  params.dsoftmax_sum = scratch.d.raw();
  params.softmax_lse_log2_ptr = scratch.lse.raw();
  params.dq_semaphore = scratch.turns_of_queries.data<int32_t>();
  params.dk_semaphore = scratch.turns_of_keys.data<int32_t>();
  params.dv_semaphore = scratch.turns_of_values.data<int32_t>();
  params.deterministic = stream.deterministic();
  const auto run = [&](auto* kernels) { kernels(params, static_cast<cudaStream_t>(stream.native())); };
  if (s.head_dim == 64) {
    run(params.deterministic ? run_flash_ordered_backward<64> : run_flash_backward<64>);
  } else {
    run(params.deterministic ? run_flash_ordered_backward<128> : run_flash_backward<128>);
  }
}

}  // namespace octavo::cuda
