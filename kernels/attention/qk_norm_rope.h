// RMSNorm (arXiv 1910.07467) of each query and key head, then rope (kernels/attention/rope.h), as in Qwen3 (arXiv
// 2505.09388, section 2). Of a head x [head_dim] with the weight of its kind, w:
//
//   rstd = 1 / sqrt(mean(x^2) + eps)
//   out = rotated(x * rstd * w)
//
// Value heads stay as they are. Rows are packed [q heads | k heads | v heads]; row t has the position of row
// t mod seq_len of the table. Compute dtype is float32 or bfloat16, arithmetic is float32, and nothing is rounded
// between norm and rotation. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct QkNormRopeForward {
  Tensor out;       // = [tokens, (num_heads + 2 * num_kv_heads) * head_dim]; may be qkv
  Tensor qkv;       // as out, compute dtype
  Tensor table;     // [seq_len, head_dim] float32, from rope_table
  Tensor q_weight;  // [head_dim], compute dtype
  Tensor k_weight;  // as q_weight
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  float eps = 1e-6f;
};
void qk_norm_rope_forward(const QkNormRopeForward& args, Stream& stream);

// With d = rotated back(d_out) of a head:
//
//   d_x = rstd * (d * w - x * rstd^2 * mean(d * w * x))
//   d_w += sum over tokens and heads of d * x * rstd
//
// rstd is computed again from x. A cast replaces the result: its operands have the bits that quantize would have made
// of d_qkv, and what d_qkv then holds is undefined. On the GPU the cast is a second kernel, as its tiles need whole
// heads. Scratch: qk_norm_rope_backward_workspace_bytes(head_dim, stream).
struct QkNormRopeBackward {
  Tensor d_qkv;       // in place [tokens, (num_heads + 2 * num_kv_heads) * head_dim]: in, d_out; out, d_x
  Tensor d_q_weight;  // += [head_dim] float32
  Tensor d_k_weight;  // as d_q_weight
  Tensor qkv;         // of the forward, as d_qkv
  Tensor table;
  Tensor q_weight;
  Tensor k_weight;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  float eps = 1e-6f;
  Tensor amax = {};   // optional [1] float32: = max(itself, max |d_qkv|), value heads included; NaN wins
  Fp8Cast cast = {};  // optional, in place of d_qkv; may be of `amax`
};
void qk_norm_rope_backward(const QkNormRopeBackward& args, Stream& stream);
int64_t qk_norm_rope_backward_workspace_bytes(int64_t head_dim, const Stream& stream);

}  // namespace octavo
