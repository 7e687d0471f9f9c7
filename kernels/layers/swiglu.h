// SwiGLU (Shazeer, arXiv 2002.05202) on packed rows [gate | up]:
//
//   out = silu(gate) * up,   silu(x) = x * sigmoid(x)
//   d_up = d_out * silu(gate),   d_gate = d_out * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
//
// Backward reads everything that `out` is computed from, so it can recompute `out` for the weight gradient. Then `out`
// need not be saved.
//
// Compute dtype is float32 or bfloat16, arithmetic is float32. An amax is that of the stored values, where NaN and
// infinity count as the largest. A cast (kernels/fp8/fp8.h) replaces a result, and the content of the tensor for the
// result is then undefined. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct SwigluForward {
  Tensor out;         // = [tokens, intermediate]
  Tensor gate_up;     // [tokens, 2 * intermediate]
  Tensor amax = {};   // optional [1] float32: = max(itself, max |out|)
  Fp8Cast cast = {};  // optional, replaces out
};
void swiglu_forward(const SwigluForward& args, Stream& stream);

struct SwigluBackward {
  Tensor d_gate_up;  // = [tokens, 2 * intermediate]; may alias gate_up
  Tensor d_out;      // [tokens, intermediate]
  Tensor gate_up;    // [tokens, 2 * intermediate]
  Tensor amax = {};  // optional [1] float32: = max(itself, max |d_gate_up|)
  // Optional, replaces d_gate_up; may use `amax`. With kBlock1x128 `intermediate` must be a multiple of 128.
  Fp8Cast cast = {};
  Tensor out = {};        // optional = [tokens, intermediate], the bits of the result of forward; may alias d_out
  Fp8Cast out_cast = {};  // optional, replaces out; has columns only, and the scaling of `cast`
};
void swiglu_backward(const SwigluBackward& args, Stream& stream);

}  // namespace octavo
