// quantize (kernels/fp8.h) of a rank's part of a matrix that a tensor-parallel group divides: scales are those of the
// whole matrix.
//
//   kRow           the amaxes of rows that are divided are made the largest over the ranks
//   kTensor        args.amax is that of the whole matrix already
//   blockwise      blocks lie within parts, as the parts are multiples of 128 wide
#pragma once

#include "kernels/fp8.h"
#include "model/tensor_parallel.h"
#include "parallel/tensor_group.h"

namespace octavo {

// `divided`: x has some rows (kOutputs) or some columns (kInputs) of the matrix. `group` null: x is all of it. A
// collective of the group; queued on its compute stream, which `stream` is.
void quantize_part(const Quantize& args, Divided divided, TensorGroup* group, Stream& stream);

}  // namespace octavo
