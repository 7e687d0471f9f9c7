// SwiGLU (Shazeer, arXiv 2002.05202) on packed rows [gate | up]:
//
//   out = silu(gate) * up,   silu(x) = x * sigmoid(x)
//   d_up = d_out * silu(gate),   d_gate = d_out * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
//
// Backward reads everything that `out` is computed from, so it can recompute `out` for the weight gradient. Then `out`
// need not be saved.
//
// Compute dtype is float32 or bfloat16, arithmetic is float32. An amax is the maximum of |x| over the stored values x,
// where NaN and infinity count as the largest. A cast (kernels/fp8/fp8.h) replaces a result, whose tensor then has
// undefined content.
//
// The gradient bound factor limits how much larger than d_out a gradient can be: |d_up| <= |d_out| * |gate|, because
// |silu(x)| <= |x|, and |d_gate| <= |d_out| * 1.1 * |up|, because |silu'(x)| < 1.1. Rounding may exceed the bound by
// 0.4%, which does not change a cast to e5m2 with a scale of the bound, because values up to 7% above the largest
// number round to this number.
//
// Queued on `stream`; deterministic.
#pragma once

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

// An upper bound of |silu'(x)|, whose maximum is 1.09984.
inline constexpr float kLargestSiluSlope = 1.1f;

struct SwigluForward {
  Tensor out;         // = [tokens, intermediate]
  Tensor gate_up;     // [tokens, 2 * intermediate]
  Tensor amax = {};   // optional [1] float32: = max(itself, max |out|)
  Fp8Cast cast = {};  // optional, replaces out
  // Optional [1] float32: = max(itself, max |gate|, 1.1 * max |up|).
  // Requires: `amax` is given, and `cast` is not.
  Tensor gradient_bound_factor = {};
};
void swiglu_forward(const SwigluForward& args, Stream& stream);

struct SwigluBackward {
  Tensor d_gate_up;  // = [tokens, 2 * intermediate]; may alias gate_up
  Tensor d_out;      // [tokens, intermediate]
  Tensor gate_up;    // [tokens, 2 * intermediate]
  Tensor amax = {};  // optional [1] float32: = max(itself, max |d_gate_up|)
  // Optional, replaces d_gate_up.
  // Requires: the cast does not use `amax`. With kBlock1x128 `intermediate` is a multiple of 128.
  Fp8Cast cast = {};
  Tensor out = {};        // optional = [tokens, intermediate], the bits of the result of forward; may alias d_out
  Fp8Cast out_cast = {};  // optional, replaces out; has columns only, and the scaling of `cast`
};
void swiglu_backward(const SwigluBackward& args, Stream& stream);

}  // namespace octavo
