// RMSNorm (Zhang and Sennrich, arXiv 1910.07467), fused with the residual add before it:
//
//   h = x + residual                       (h = x without a residual)
//   rstd = 1 / sqrt(mean(h^2) + eps)       per token, float32
//   out = h * rstd * weight
//
// h is rounded to the compute dtype before it is normalized, because backward reads the stored h. Compute dtype is
// float32 or bfloat16, arithmetic is float32. An amax is the maximum of |x| over the stored values x, where NaN and
// infinity count as the largest. A cast (kernels/fp8/fp8.h) replaces `out`, whose content is then undefined. On GPUs
// the cast is a second kernel, because its tiles need the rstd of whole rows. It reads h instead of `out`, which moves
// 10 bytes per element instead of 12 in bfloat16 with a residual and a cast to rows and columns. Queued on `stream`;
// deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct RmsNormForward {
  Tensor out;           // = [tokens, hidden]
  Tensor rstd;          // = [tokens] float32
  Tensor residual_out;  // = h [tokens, hidden]; required if `residual` is defined; may alias x or residual
  Tensor x;             // [tokens, hidden]
  Tensor residual;      // optional [tokens, hidden]
  Tensor weight;        // [hidden], compute dtype
  float eps = 1e-5f;
  Tensor amax = {};   // optional [1] float32: = max(itself, max |out|)
  Fp8Cast cast = {};  // optional, replaces out; may use `amax`
};
void rms_norm_forward(const RmsNormForward& args, Stream& stream);

// Computes
//
//   d_h = d_residual + rstd * (d_out * weight - h * rstd^2 * mean(d_out * weight * h))
//   d_weight += sum over tokens of d_out * h * rstd
struct RmsNormBackward {
  Tensor d_h;         // = [tokens, hidden]; the gradient of both x and residual; may alias d_residual or d_out
  Tensor d_weight;    // += [hidden] float32
  Tensor d_out;       // [tokens, hidden]
  Tensor d_residual;  // optional [tokens, hidden]: gradient of h from the residual connection
  Tensor h;           // [tokens, hidden]: residual_out of forward, or x without a residual
  Tensor rstd;        // [tokens] float32
  Tensor weight;      // [hidden], compute dtype
  Tensor amax = {};   // optional [1] float32: = max(itself, max |d_h|)
};
void rms_norm_backward(const RmsNormBackward& args, Stream& stream);
// Returns the scratch that rms_norm_backward takes from the workspace of its stream.
int64_t rms_norm_backward_workspace_bytes(int64_t hidden, const Stream& stream);

}  // namespace octavo
