// FP8 operands of matrix multiplication: how a tensor is scaled, cast and laid out (Micikevicius et al., arXiv
// 2209.05433; scales of blocks as in DeepSeek-V3, arXiv 2412.19437, section 3.3).
//
// Hopper's FP8 matmul takes both operands with the contracted dimension innermost. A linear layer contracts its input x
// [tokens, in] over `in` in forward and over `tokens` for the weight gradient, so x is cast into an operand with the
// rows of x and an operand with its columns, the transpose. The weight and the output gradient are cast in the same
// way. A quantized value q stands for q * scale_inv.
//
//   scale = fp8_max / max(amax, 1e-12),   scale_inv = 1 / scale,   q = round(x * scale), saturating   (float32)
//
// An amax is the maximum of |x|. NaN and infinity count as the largest values in it and make q NaN, so a broken tensor
// stays visible.
//
// All ops are queued on `stream` and are deterministic.
// Requires: on GPUs, a matrix to cast has a multiple of 16 columns, and of 16 rows if `columns` is an operand. All
// matrices start at multiples of 16 bytes. An op throws otherwise.
#pragma once

#include <optional>

#include "core/stream.h"
#include "kernels/fp8/scaling.h"

namespace octavo {

struct Fp8Operand {
  Tensor data;       // [rows, k] float8_e4m3 or float8_e5m2
  Tensor scale_inv;  // float32, with the shape that `scaling` implies
  Scaling scaling = Scaling::kTensor;
  bool defined() const { return data.defined(); }
};

// Computes out[0] = max(out[0], factor * max |x|).
struct Amax {
  Tensor out;          // in and out, [1] float32; zero before the first call
  Tensor x;            // [n] float32 or bfloat16
  Tensor factor = {};  // optional [1] float32, not negative; 1 if undefined
};
void amax(const Amax& args, Stream& stream);

// The operands that a tensor [m, n] is cast into, and the source of their scale.
//
// An op that takes a cast writes these operands instead of its result, with the bits that quantize would compute from
// the result. With kTensor, `amax` is known before the op runs, as in delayed scaling, or is the tensor that the op
// writes the amax of its result to. In the latter case the op computes its result twice, to measure and then to cast
// it.
// Requires: if an op takes the cast, its scaling has ScalingTraits::casts_results.
struct Fp8Cast {
  Fp8Operand rows = {};             // optional = [m, n]
  Fp8Operand columns = {};          // optional = [n, m], the transpose; format and scaling equal those of rows
  Tensor amax = {};                 // kTensor: [1] float32, the amax that the scale is computed from
  std::optional<float> bound = {};  // kTensor: replaces amax by an upper bound of |x| that the host knows
  bool defined() const { return rows.defined() || columns.defined(); }
  // Returns whether the scale is computed from the amax of the result itself, which the op writes to `measured`.
  bool is_of(const Tensor& measured) const {
    return defined() && traits(scaling()).takes_amax && measured.defined() && !bound && amax.raw() == measured.raw();
  }
  Scaling scaling() const { return rows.defined() ? rows.scaling : columns.scaling; }
  DType format() const { return rows.defined() ? rows.data.dtype() : columns.data.dtype(); }
};

// Passes of a cast of x. With kRow a cast reads x twice, in the passes kMeasure and kCast, otherwise once. Ranks that
// hold parts of a matrix run these two passes separately. In between they reduce amaxes to the maxima over the ranks:
// those in rows.scale_inv if each rank has some columns of the matrix, those in columns.scale_inv if each rank has some
// rows. The operands of a rank then have the bits of its part of the whole matrix's operands.
enum class QuantizePasses : uint8_t {
  kAll,
  kMeasure,  // kRow: writes only the amaxes, into scale_inv of the operands
  kCast,     // kRow: reads the amaxes from scale_inv and replaces them by inverse scales
};
struct Quantize {
  Fp8Cast cast;
  Tensor x;              // [m, n], compute dtype
  Tensor amax_out = {};  // optional [1] float32: = max(itself, max |x|), for delayed scaling; not with kMeasure
  QuantizePasses passes = QuantizePasses::kAll;
};
void quantize(const Quantize& args, Stream& stream);

// Computes d = a b^T (+ d) from the values of two quantized operands, with float32 accumulation.
// Requires: at least one operand is e4m3. The scalings are kTensor for both, kRow for both, or 1x128 with 1x128 or
// 128x128. k and n are multiples of 16, and on GPUs of 128 if a scaling is blockwise.
struct Fp8Matmul {
  Tensor d;      // [m, n] bfloat16 or float32
  Fp8Operand a;  // [m, k]
  Fp8Operand b;  // [n, k]
  bool accumulate = false;
  // Whether to use the tensor cores' reduced-precision accumulation, twice as fast at long k. Only kTensor and kRow.
  bool fast_accumulation = false;
  const char* name = "fp8_matmul";
};
void fp8_matmul(const Fp8Matmul& args, Stream& stream);

// Returns the scratch that fp8_matmul takes from the workspace of its stream.
int64_t fp8_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, const Stream& stream);

}  // namespace octavo
