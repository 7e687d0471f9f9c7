// FP8 operands of matrix products: how a tensor is scaled, cast and laid out (arXiv 2209.05433; blockwise as in
// DeepSeek-V3, arXiv 2412.19437, section 3.3).
//
// Hopper's FP8 product takes both operands with the contracted dimension innermost. A linear layer contracts its input
// x [tokens, in] over `in` (forward) and over `tokens` (weight gradient), so x is cast once into x and its transpose;
// the same holds for the weight and the output's gradient. A quantized value q stands for q * scale_inv.
//
//   scale = fp8_max / max(amax, 1e-12),   scale_inv = 1 / scale,   q = round(x * scale), saturating   (float32)
//
// amax is a maximum over |x| in which NaN and infinity win, and they make q NaN: a broken tensor surfaces.
#pragma once

#include <optional>

#include "core/stream.h"
#include "kernels/fp8/scaling.h"

namespace octavo {

struct Fp8Operand {
  Tensor data;       // [rows, k] float8_e4m3 or float8_e5m2
  Tensor scale_inv;  // float32, by `scaling`
  Scaling scaling = Scaling::kTensor;
  bool defined() const { return data.defined(); }
};

// out[0] = max(out[0], max |x|). `out` starts at 0 (zero bytes). x [n] float32 or bfloat16. Queued; deterministic.
struct Amax {
  Tensor out;  // [1] float32
  Tensor x;
};
void amax(const Amax& args, Stream& stream);

// Casts x into a row operand, a column operand (the transpose), or both, in one pass over x. Queued; deterministic.
struct Quantize {
  Fp8Operand rows;     // optional = [m, n]
  Fp8Operand columns;  // optional = [n, m]; of the same format and scaling as rows
  Tensor x;            // [m, n], compute dtype
  Tensor amax;         // kTensor: [1] float32, what the scale is made of; not used by the other scalings
  Tensor amax_out;     // optional [1] float32: = max(itself, max |x|), for delayed scaling
  // kRow: scale_inv of the operands holds the amaxes of their rows, from row_amaxes.
  bool measured = false;
  // kTensor, in place of an amax: a magnitude that x does not exceed and that is known without looking.
  std::optional<float> bound = {};
};
void quantize(const Quantize& args, Stream& stream);

// The first half of quantize with kRow, for an x of which other ranks hold more: writes the amaxes of the operands'
// rows into their scale_inv. Where a rank has only a part of the columns of the whole, that of `rows` is then made the
// maximum over the ranks, where only a part of its rows, that of `columns`; quantize with `measured` makes of it the
// rank's part of the operands of the whole, bit by bit. Queued; deterministic.
struct RowAmaxes {
  Fp8Operand rows;     // optional = [m, n], kRow; only scale_inv is written
  Fp8Operand columns;  // optional = [n, m]; of the same format and scaling as rows
  Tensor x;            // [m, n], compute dtype
};
void row_amaxes(const RowAmaxes& args, Stream& stream);

// The operands that an op can write in place of its result [m, n], which then need not be written and read again. They
// have the bits that quantize would give them. Only where a scale is known before the result is, or is local: kTensor
// with an amax from elsewhere, as in delayed scaling, and kBlock1x128. Some ops also take kTensor with the amax that
// they themselves are given to measure the result with: they make it twice, once to measure it and once to cast it.
struct Fp8Cast {
  Fp8Operand rows;                  // optional = [m, n]
  Fp8Operand columns;               // optional = [n, m]; of the same format and scaling as rows
  Tensor amax;                      // kTensor: [1] float32, what the scale is made of
  std::optional<float> bound = {};  // kTensor, in place of an amax, as in Quantize
  bool defined() const { return rows.defined() || columns.defined(); }
  // Whether the scale is that of the result itself, whose amax the op leaves in `measured`.
  bool is_of(const Tensor& measured) const {
    return defined() && traits(scaling()).takes_amax && measured.defined() && !bound && amax.raw() == measured.raw();
  }
  Scaling scaling() const { return rows.defined() ? rows.scaling : columns.scaling; }
  DType format() const { return rows.defined() ? rows.data.dtype() : columns.data.dtype(); }
};

// d = a b^T (+ d): the product of two quantized operands, dequantized, accumulated in float32. a [m, k], b [n, k]; d
// [m, n] bfloat16 or float32. e4m3 with either format; e5m2 with e5m2 is refused. kTensor with kTensor, kRow with kRow,
// 1x128 with 1x128 or 128x128. k and n multiples of 16; on GPUs of 128 where a scaling is blockwise.
// fast_accumulation: the tensor cores' reduced-precision accumulation, twice the rate at long k; kTensor and kRow only.
struct Fp8Matmul {
  Tensor d;
  Fp8Operand a;
  Fp8Operand b;
  bool accumulate = false;
  bool fast_accumulation = false;
  const char* name = "fp8_matmul";
};
void fp8_matmul(const Fp8Matmul& args, Stream& stream);

// Scratch of the above.
int64_t fp8_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, const Stream& stream);

}  // namespace octavo
