// RMSNorm (arXiv 1910.07467) of each query and key head, followed by rotary position embedding
// (kernels/attention/rope.h), as in Qwen3 (arXiv 2505.09388, section 2). For a head x [head_dim], with w the weight for
// query heads or for key heads:
//
//   rstd = 1 / sqrt(mean(x^2) + eps)
//   out = rotated(x * rstd * w)
//
// Value heads are copied. Rows are packed [q heads | k heads | v heads]. Token t is rotated by row t mod seq_len of
// `table`. Compute dtype is float32 or bfloat16, arithmetic is float32, and nothing is rounded between norm and
// rotation. Queued on `stream`; deterministic.
// Requires: on GPUs, rows and weights are aligned to 16 bytes, and half a head is a multiple of 16 bytes, at most 512.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct QkNormRopeForward {
  // = [tokens, (num_heads + 2 * num_kv_heads) * head_dim]; may alias qkv.
  Tensor out;
  Tensor qkv;       // Input, same shape as out, compute dtype.
  Tensor table;     // [seq_len, head_dim] float32, from rope_table
  Tensor q_weight;  // [head_dim], compute dtype
  Tensor k_weight;  // Same shape and dtype as q_weight.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  float eps = 1e-6f;
};
void qk_norm_rope_forward(const QkNormRopeForward& args, Stream& stream);

// Backward. With d = d_out of a head after the inverse rotation:
//
//   d_x = rstd * (d * w - x * rstd^2 * mean(d * w * x))
//   d_w += sum over tokens and heads of d * x * rstd
//
// rstd is recomputed from x. If `cast` is given, the op writes its FP8 operands instead of d_qkv, with the bits that
// quantize would compute from d_qkv. The content of d_qkv is then undefined. On the GPU the cast is a second kernel,
// because its tiles need whole heads. Uses qk_norm_rope_backward_workspace_bytes(head_dim, stream) bytes of the
// stream's workspace.
struct QkNormRopeBackward {
  // In place [tokens, (num_heads + 2 * num_kv_heads) * head_dim]: d_out before, d_x after.
  Tensor d_qkv;
  Tensor d_q_weight;  // += [head_dim] float32
  Tensor d_k_weight;  // Same shape and dtype as d_q_weight.
  Tensor qkv;         // Input of the forward pass, same shape as d_qkv.
  Tensor table;
  Tensor q_weight;
  Tensor k_weight;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  float eps = 1e-6f;
  // Optional [1] float32: = max(old value, max |d_qkv|), including value heads. NaN is the largest value.
  Tensor amax = {};
  Fp8Cast cast = {};  // Optional FP8 cast, written instead of d_qkv. May use `amax`.
};
void qk_norm_rope_backward(const QkNormRopeBackward& args, Stream& stream);
int64_t qk_norm_rope_backward_workspace_bytes(int64_t head_dim, const Stream& stream);

}  // namespace octavo
