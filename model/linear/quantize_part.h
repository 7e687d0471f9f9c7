// quantize (kernels/fp8/fp8.h) of a rank's part of a matrix that a tensor-parallel group divides, or whose tokens (the
// rows of x) a context-parallel group does: scales are those of the whole matrix.
//
//   kRow           the amaxes of rows that are divided are made the largest over the ranks; those of columns of tokens
//                  that are, over the context-parallel ones
//   kTensor        args.cast.amax is that of the whole matrix already
//   blockwise      blocks lie within parts, as the parts are multiples of 128 wide, and pieces of sequences of 128
//                  tokens
#pragma once

#include "kernels/fp8/fp8.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

// `divided`: x has some rows (kOutputs) or some columns (kInputs) of the matrix. `group` null: x is all of it. A
// collective of the group; queued on its compute stream, which `stream` is. `context` null: x has all tokens, or is a
// weight.
struct MatrixParts {
  Divided divided = Divided::kInputs;
  TensorGroup* group = nullptr;
  const ContextGroup* context = nullptr;
};
void quantize_part(const Quantize& args, const MatrixParts& parts, Stream& stream);

}  // namespace octavo
