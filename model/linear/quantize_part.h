// quantize (kernels/fp8/fp8.h) for a part of a matrix. Tensor-parallel ranks divide the rows or columns of the matrix,
// and context-parallel ranks divide its tokens, which are the rows of x. The scales are those of the whole matrix:
//
//   kRow       The ranks take the maximum of the amaxes of each row or column that they divide.
//   kTensor    args.amax is already the amax of the whole matrix.
//   blockwise  No block extends over two parts, because parts are multiples of 128 wide, and chunks of sequences have
//              multiples of 128 tokens. The exception is qkv: if a rank's keys are not a multiple of 128 rows, keys and
//              values share a block, and the scales of both depend on the number of ranks.
#pragma once

#include "kernels/fp8/fp8.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

// The ranks that have the other parts of the matrix.
struct MatrixParts {
  Divided divided = Divided::kInputs;     // x has some rows (kOutputs) or some columns (kInputs) of the matrix.
  TensorGroup* group = nullptr;           // Null means that no tensor-parallel ranks divide the matrix.
  const ContextGroup* context = nullptr;  // Null means that x has all tokens, or that x is a weight.
};
// Casts a part of a matrix. A collective of both groups.
// Requires: `stream` is the compute stream of the tensor-parallel group.
void quantize_part(const Quantize& args, const MatrixParts& parts, Stream& stream);

}  // namespace octavo
