// SwiGLU (Shazeer, arXiv 2002.05202) on packed rows [gate | up]:
//
//   out = silu(gate) * up,   silu(x) = x * sigmoid(x)
//   d_up = d_out * silu(gate),   d_gate = d_out * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
//
// Compute dtype is float32 or bfloat16, arithmetic is float32. An amax is that of the values as stored; NaN and
// infinity win. Queued on `stream`; deterministic.
#pragma once

#include "kernels/core/stream.h"

namespace octavo {

struct SwigluForward {
  Tensor out;        // = [tokens, intermediate]
  Tensor gate_up;    // [tokens, 2 * intermediate]
  Tensor amax = {};  // optional [1] float32: = max(itself, max |out|)
};
void swiglu_forward(const SwigluForward& args, Stream& stream);

struct SwigluBackward {
  Tensor d_gate_up;  // = [tokens, 2 * intermediate]; may alias gate_up
  Tensor d_out;      // [tokens, intermediate]
  Tensor gate_up;    // [tokens, 2 * intermediate]
  Tensor amax = {};  // optional [1] float32: = max(itself, max |d_gate_up|)
};
void swiglu_backward(const SwigluBackward& args, Stream& stream);

}  // namespace octavo
