#include <cuda_runtime_api.h>
#include <flash.h>

#include <cmath>

#include "core/cuda_backend.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention/flash_kernels.h"

namespace octavo::cuda {

namespace {

// What both passes have alike. Tensors are views into the packed qkv buffer: nothing is copied.
void set_common(Flash_fwd_params& params, const SdpaShape& s, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                const Stream& stream) {
  auto* packed = qkv.data<BFloat16>();
  params.q_ptr = packed;
  params.k_ptr = packed + s.num_heads * s.head_dim;
  params.v_ptr = packed + (s.num_heads + s.num_kv_heads) * s.head_dim;
  params.q_batch_stride = params.k_batch_stride = params.v_batch_stride = s.seq_len * s.qkv_width();
  params.q_row_stride = params.k_row_stride = params.v_row_stride = s.qkv_width();
  params.q_head_stride = params.k_head_stride = params.v_head_stride = s.head_dim;
  params.v_dim_stride = 1;
  params.o_ptr = out.raw();
  params.o_batch_stride = s.seq_len * s.out_width();
  params.o_row_stride = s.out_width();
  params.o_head_stride = s.head_dim;
  params.softmax_lse_ptr = lse.raw();

  params.b = params.b_k = static_cast<int>(s.batch);
  params.h = static_cast<int>(s.num_heads);
  params.h_k = static_cast<int>(s.num_kv_heads);
  params.seqlen_q = params.seqlen_k = static_cast<int>(s.seq_len);
  params.total_q = params.total_k = static_cast<int>(s.batch * s.seq_len);
  params.d = params.d_rounded = params.dv = params.dv_rounded = static_cast<int>(s.head_dim);
  params.scale_softmax = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  params.window_size_left = static_cast<int>(s.seq_len) - 1;
  params.window_size_right = 0;
  params.num_splits = 1;
  params.num_sm = stream.multiprocessors();
  params.is_bf16 = true;
  params.is_causal = true;
}

}  // namespace

void flash_forward(const SdpaForward& args, Stream& stream) {
  Flash_fwd_params params = {};
  set_common(params, args.shape, args.qkv, args.out, args.lse, stream);
  const FlashForwardTensors scratch(stream.workspace(FlashForwardTensors(nullptr).bytes));
  zero_async(scratch.tiles.raw(), scratch.tiles.bytes(), stream.native());
  params.tile_count_semaphore = scratch.tiles.data<int32_t>();
  auto* run = args.shape.head_dim == 64 ? run_flash_forward<64> : run_flash_forward<128>;
  run(params, static_cast<cudaStream_t>(stream.native()));
}

void flash_backward(const SdpaBackward& args, Stream& stream) {
  const SdpaShape& s = args.shape;
  Flash_bwd_params params = {};
  set_common(params, s, args.qkv, args.out, args.lse, stream);
  params.do_ptr = args.d_out.raw();
  params.do_batch_stride = params.o_batch_stride;
  params.do_row_stride = params.o_row_stride;
  params.do_head_stride = params.o_head_stride;
  auto* packed = args.d_qkv.data<BFloat16>();
  params.dq_ptr = packed;
  params.dk_ptr = packed + s.num_heads * s.head_dim;
  params.dv_ptr = packed + (s.num_heads + s.num_kv_heads) * s.head_dim;
  params.dq_batch_stride = params.dk_batch_stride = params.dv_batch_stride = params.q_batch_stride;
  params.dq_row_stride = params.dk_row_stride = params.dv_row_stride = params.q_row_stride;
  params.dq_head_stride = params.dk_head_stride = params.dv_head_stride = params.q_head_stride;

  const FlashBackwardTensors scratch(s, stream.workspace(FlashBackwardTensors(s, nullptr).bytes));
  zero_async(scratch.zeros.raw(), scratch.zeros.bytes(), stream.native());
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
  auto* run = s.head_dim == 64 ? run_flash_backward<64> : run_flash_backward<128>;
  run(params, static_cast<cudaStream_t>(stream.native()));
}

}  // namespace octavo::cuda
