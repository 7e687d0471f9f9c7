// The steps of `quantize` (kernels/fp8/fp8.h, kTensor) as separate ops, for FP8 weights in sharded training. Each rank
// casts its piece of a weight, the bytes are gathered, and the whole weight is transposed and gets its scale_inv. The
// result has the bits of quantize of the whole weight:
//
//   rows = fp8_cast_piece of the pieces,   columns = fp8_transpose of rows,   scale_inv = fp8_scale_inv of the amax
//
// Queued on `stream`; deterministic; wrong shapes and dtypes throw.
#pragma once

#include "core/stream.h"

namespace octavo {

// Computes out[i] = round(x[i] * scale), saturating, with scale = fp8_max / max(amax, 1e-12). A piece may start at any
// element and have any length. The cast is fastest if x and out have the same offset, in elements, from a multiple of
// 16 bytes.
struct Fp8CastPiece {
  Tensor out;   // = [n] float8_e4m3 or float8_e5m2
  Tensor x;     // [n] float32 or bfloat16
  Tensor amax;  // [1] float32, the amax of the whole tensor
};
void fp8_cast_piece(const Fp8CastPiece& args, Stream& stream);

// Computes out[j][i] = x[i][j] in one pass.
// Requires: out does not alias x.
struct Fp8Transpose {
  Tensor out;  // = [n, m], dtype of x
  Tensor x;    // [m, n] float8_e4m3 or float8_e5m2
};
void fp8_transpose(const Fp8Transpose& args, Stream& stream);

// Computes scale_inv[i] = 1 / (fp8_max / max(amax[i], 1e-12)) for many tensors at once.
struct Fp8ScaleInv {
  Tensor scale_inv;  // = [n] float32, which may alias amax, or the first column of [n, stride] float32
  Tensor amax;       // [n] float32
  DType format = DType::kFloat8E4M3;
};
void fp8_scale_inv(const Fp8ScaleInv& args, Stream& stream);

// Returns the distance in elements from one scale_inv to the next.
inline int64_t scale_inv_stride(const Fp8ScaleInv& args) {
  return args.scale_inv.ndim() == 2 ? args.scale_inv.dim(1) : 1;
}

}  // namespace octavo
