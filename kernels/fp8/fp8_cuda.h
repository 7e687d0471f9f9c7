// The CUDA implementations of the ops in kernels/fp8/ (kernels/cuda/dispatch.h). Each has the contract of its op.
#pragma once

#include "kernels/fp8/amax_history.h"
#include "kernels/fp8/fp8.h"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/fp8/fp8_stats.h"

namespace octavo::cuda {

void amax_history(const AmaxHistory& args, Stream& stream);
void amax(const Amax& args, Stream& stream);
void quantize(const Quantize& args, Stream& stream);
void fp8_matmul(const Fp8Matmul& args, Stream& stream);
void fp8_cast_piece(const Fp8CastPiece& args, Stream& stream);
void fp8_transpose(const Fp8Transpose& args, Stream& stream);
void fp8_scale_inv(const Fp8ScaleInv& args, Stream& stream);
void fp8_stats(const Fp8Stats& args, Stream& stream);

}  // namespace octavo::cuda
