// Matrix product: d = op(a) op(b)  (+ d when accumulating), row-major, accumulated in float32.
//
// op(a) is [m, k], op(b) is [k, n], d is [m, n]; `transpose_a` means that a is stored [k, m], `transpose_b` that b is
// stored [n, k]. a and b share the compute dtype (float32 or bfloat16); d has it too, or float32, which is how a weight
// gradient sums in full precision over micro-batches. d may not alias a or b.
//
// The three products of a linear layer y = x W^T, W [out, in] as in Hugging Face:
//   y [tokens, out]       = x W^T        transpose_b
//   d_x [tokens, in]      = d_y W
//   d_W [out, in] float32 += d_y^T x     transpose_a, accumulate
//
// On GPUs cuBLASLt runs it: on the first call with a shape, candidate algorithms are timed on scratch operands and the
// fastest is kept (a deterministic stream, or a `reproducible` product, takes the first candidate without split-K
// instead), so make one call of every shape before the first step. Dimensions and pointers are best multiples of 16
// bytes; any are allowed. On the CPU kernels/matmul/sgemm.h computes in float32 (bfloat16 operands are widened in the
// workspace). Queued on `stream`.
#pragma once

#include <string>

#include "core/stream.h"

namespace octavo {

struct Matmul {
  Tensor d;  // [m, n]
  Tensor a;
  Tensor b;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // d += instead of d =
  // The same bits on every rank with such a GPU, however the candidates' times fall.
  bool reproducible = false;
  const char* name = "matmul";  // for the profile, a string literal
};
void matmul(const Matmul& args, Stream& stream);

// Scratch for a product of these sizes in this dtype.
int64_t matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype, const Stream& stream);

// The version of cuBLASLt that this process has loaded, "13.1.0"; empty in a build without CUDA.
std::string cublaslt_version();

}  // namespace octavo
