// One attention on GPUs: by FlashAttention-3 (kernels/attention/flash_attention.h) where it has kernels for the heads
// and no sequence has padding, else by cuDNN (kernels/attention/sdpa_plans_cudnn.h).
#pragma once

#include "kernels/attention/sdpa_geometry.h"

namespace octavo::cuda {

// Queued on the stream, with its workspace from byte `begin` on. `pointers`: of every tensor of the pass; the lengths,
// [batch] int32, where the sequences have some.
void attend_forward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                    Stream& stream);
void attend_backward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                     Stream& stream);

// Scratch that it needs. cuDNN's plans are built here.
int64_t attend_forward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream);
int64_t attend_backward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream);

}  // namespace octavo::cuda
