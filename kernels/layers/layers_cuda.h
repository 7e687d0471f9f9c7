// The CUDA implementations of the ops in kernels/layers/ (kernels/cuda/dispatch.h). Each has the contract of its op.
#pragma once

#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/cross_entropy_parallel.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"

namespace octavo::cuda {

// Maximum number of blocks of rms_norm_backward per multiprocessor. Each block writes a row of partial sums of d_weight
// into the workspace.
inline constexpr int kRmsNormBlocksPerMultiprocessor = 4;

void cross_entropy(const CrossEntropy& args, Stream& stream);
void mask_padding(const MaskPadding& args, Stream& stream);
void cross_entropy_stats(const CrossEntropyStats& args, Stream& stream);
void cross_entropy_parallel(const CrossEntropyParallel& args, Stream& stream);
void embedding_forward(const EmbeddingForward& args, Stream& stream);
void embedding_backward(const EmbeddingBackward& args, Stream& stream);
void rms_norm_forward(const RmsNormForward& args, Stream& stream);
void rms_norm_backward(const RmsNormBackward& args, Stream& stream);
void swiglu_forward(const SwigluForward& args, Stream& stream);
void swiglu_backward(const SwigluBackward& args, Stream& stream);

}  // namespace octavo::cuda
