// FP8 weights in sharded training, the steps of `quantize` (kernels/fp8/fp8.h, kTensor) taken apart: a rank casts its
// piece of the weights, the bytes are gathered, and the whole weight is transposed and gets its scale_inv. Put together
// they give the bits of quantize of the whole weight:
//
//   fp8_cast_piece of the pieces = rows,   fp8_transpose of rows = columns,   fp8_scale_inv = scale_inv of both
//
// Queued on `stream`; deterministic; wrong shapes and dtypes throw.
#pragma once

#include "core/stream.h"

namespace octavo {

// out[i] = round(x[i] * scale), saturating, scale = fp8_max / max(amax, 1e-12). A piece may start at any element and
// have any length; it is fastest where x and out are as many elements away from a multiple of 16.
struct Fp8CastPiece {
  Tensor out;   // = [n] float8_e4m3 or float8_e5m2
  Tensor x;     // [n] float32 or bfloat16
  Tensor amax;  // [1] float32, of the whole tensor that x is a piece of
};
void fp8_cast_piece(const Fp8CastPiece& args, Stream& stream);

// out[j][i] = x[i][j], byte by byte, in one pass. Must not alias.
struct Fp8Transpose {
  Tensor out;  // = [n, m], as x
  Tensor x;    // [m, n] float8_e4m3 or float8_e5m2
};
void fp8_transpose(const Fp8Transpose& args, Stream& stream);

// scale_inv[i] = 1 / (fp8_max / max(amax[i], 1e-12)), of many tensors at once.
struct Fp8ScaleInv {
  Tensor scale_inv;  // = float32, [n] or the first of each row of [n, stride]; [n] may be amax
  Tensor amax;       // [n] float32
  DType format = DType::kFloat8E4M3;
};
void fp8_scale_inv(const Fp8ScaleInv& args, Stream& stream);

// From one scale_inv to the next, in elements.
inline int64_t scale_inv_stride(const Fp8ScaleInv& args) {
  return args.scale_inv.ndim() == 2 ? args.scale_inv.dim(1) : 1;
}

}  // namespace octavo
