// SwiGLU (Shazeer, arXiv 2002.05202) on packed rows [gate | up]:
//
//   out = silu(gate) * up,   silu(x) = x * sigmoid(x)
//   d_up = d_out * silu(gate),   d_gate = d_out * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
//
// Backward has all that out is made of, so it can make it once more on the way, for the weight gradient that reads it:
// then no one needs to keep it.
//
// Compute dtype is float32 or bfloat16, arithmetic is float32. An amax is that of the values as stored, in the compute
// dtype; NaN and infinity win. A cast replaces the result: its operands have the bits that quantize would have made of
// it, and what the tensor for the result then holds is undefined. Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct SwigluForward {
  Tensor out;         // = [tokens, intermediate]
  Tensor gate_up;     // [tokens, 2 * intermediate]
  Tensor amax = {};   // optional [1] float32: = max(itself, max |out|)
  Fp8Cast cast = {};  // optional, in place of out
};
void swiglu_forward(const SwigluForward& args, Stream& stream);

struct SwigluBackward {
  Tensor d_gate_up;  // = [tokens, 2 * intermediate]; may alias gate_up
  Tensor d_out;      // [tokens, intermediate]
  Tensor gate_up;    // [tokens, 2 * intermediate]
  Tensor amax = {};  // optional [1] float32: = max(itself, max |d_gate_up|)
  // Optional, in place of d_gate_up; may be of `amax`. With kBlock1x128 intermediate must be a multiple of 128.
  Fp8Cast cast = {};
  // Optional: = the result of forward, bit by bit, [tokens, intermediate]; may alias d_out.
  Tensor out = {};
  Fp8Cast out_cast = {};  // optional, in place of out: columns alone; of the same scaling as `cast`
};
void swiglu_backward(const SwigluBackward& args, Stream& stream);

}  // namespace octavo
