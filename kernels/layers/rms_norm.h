// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) with the residual add fused in front:
//
//   h = x + residual                       (h = x without a residual)
//   rstd = 1 / sqrt(mean(h^2) + eps)       per token, float32
//   out = h * rstd * weight
//
// h is rounded to the compute dtype before it is normalized, so that backward, which reads the stored h, sees the
// same values. Compute dtype is float32 or bfloat16, arithmetic is float32. An amax is that of the values as stored;
// NaN and infinity win. A cast replaces out: its operands have the bits that quantize would have made of out, and what
// out then holds is undefined. On the GPU it is a second kernel, as its tiles need the rstd of whole rows: h is read
// again, but out is neither written nor read, 10 bytes an element in place of 12 (bfloat16 with a residual, rows and
// columns wanted). Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct RmsNormForward {
  Tensor out;           // = [tokens, hidden]
  Tensor rstd;          // = [tokens] float32
  Tensor residual_out;  // = h [tokens, hidden]; needed when `residual` is given; may alias x or residual
  Tensor x;             // [tokens, hidden]
  Tensor residual;      // optional [tokens, hidden]
  Tensor weight;        // [hidden], compute dtype
  float eps = 1e-5f;
  Tensor amax = {};   // optional [1] float32: = max(itself, max |out|)
  Fp8Cast cast = {};  // optional, in place of out; may be of `amax`
};
void rms_norm_forward(const RmsNormForward& args, Stream& stream);

//   d_h = d_residual + rstd * (d_out * weight - h * rstd^2 * mean(d_out * weight * h))
//   d_weight += sum over tokens of d_out * h * rstd
struct RmsNormBackward {
  Tensor d_h;         // = [tokens, hidden]; the gradient of both x and residual; may alias d_residual or d_out
  Tensor d_weight;    // += [hidden] float32
  Tensor d_out;       // [tokens, hidden]
  Tensor d_residual;  // optional [tokens, hidden]: what reaches h past the norm
  Tensor h;           // [tokens, hidden]: residual_out of the forward (x without a residual)
  Tensor rstd;        // [tokens] float32
  Tensor weight;      // [hidden], compute dtype
  Tensor amax = {};   // optional [1] float32: = max(itself, max |d_h|)
};
// Scratch: rms_norm_backward_workspace_bytes(hidden, stream).
void rms_norm_backward(const RmsNormBackward& args, Stream& stream);
int64_t rms_norm_backward_workspace_bytes(int64_t hidden, const Stream& stream);

}  // namespace octavo
