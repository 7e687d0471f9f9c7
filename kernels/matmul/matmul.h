// Matrix multiplication: d = op(a) op(b)  (+ d when accumulating), row-major, with float32 accumulation.
//
// op(a) is [m, k], op(b) is [k, n], d is [m, n]. `transpose_a` means that a is stored [k, m], `transpose_b` that b is
// stored [n, k]. a and b have the compute dtype (float32 or bfloat16). d has the compute dtype or float32, in which
// weight gradients are summed over micro-batches. d may not alias a or b.
//
// The three matmuls of a linear layer y = x W^T, W [out, in] as in Hugging Face:
//   y [tokens, out]       = x W^T        transpose_b
//   d_x [tokens, in]      = d_y W
//   d_W [out, in] float32 += d_y^T x     transpose_a, accumulate
//
// On GPUs cuBLASLt runs the matmul. The first call with a shape times candidate algorithms on scratch operands and
// keeps the fastest, so the caller should make one call of every shape before the first step. A deterministic stream
// and a `reproducible` matmul take the first candidate without split-K instead. Any dimensions and addresses are
// allowed; multiples of 16 bytes are fastest. On the CPU kernels/matmul/sgemm.h computes in float32, and bfloat16
// operands are widened in the workspace. Queued on `stream`.
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
  bool accumulate = false;  // whether d += instead of d =
  // Whether all ranks with GPUs of one kind must get equal bits. The algorithm then does not depend on measured times.
  bool reproducible = false;
  const char* name = "matmul";  // for the profile, a string literal
};
void matmul(const Matmul& args, Stream& stream);

// Returns the workspace that a matmul of these sizes needs; `dtype` is that of its operands.
int64_t matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype, const Stream& stream);

// Returns the version of cuBLASLt that this process has loaded, "13.1.0", or "" in a build without CUDA.
std::string cublaslt_version();

}  // namespace octavo
