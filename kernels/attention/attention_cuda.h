// CUDA implementations of the ops of kernels/attention/ (kernels/cuda/dispatch.h). Each function has the contract of
// its op.
#pragma once

#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/sdpa.h"

namespace octavo::cuda {

// Number of blocks of qk_norm_rope_backward per multiprocessor. Each block writes one row of partial sums per weight to
// the workspace.
inline constexpr int kQkNormRopeBlocksPerMultiprocessor = 2;

void rope(const Rope& args, Stream& stream);
void qk_norm_rope_forward(const QkNormRopeForward& args, Stream& stream);
void qk_norm_rope_backward(const QkNormRopeBackward& args, Stream& stream);
void sdpa_forward(const SdpaForward& args, Stream& stream);
void sdpa_backward(const SdpaBackward& args, Stream& stream);
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents);
std::string cudnn_version();

}  // namespace octavo::cuda
