// Attention on GPUs for the sequences of one geometry. Uses FlashAttention-3
// (kernels/flash_attention/flash_attention.h) if it has kernels for the heads and no sequence is padded, otherwise
// cuDNN (kernels/attention/sdpa_plans_cudnn.h).
#pragma once

#include "core/stream.h"
#include "kernels/attention_shapes/sdpa_geometry.h"

namespace octavo::cuda {

// Queue one attention on the stream. The stream's workspace is used from byte `begin` on. `pointers` has the address of
// every tensor of the pass, including the lengths [batch] int32 if sequences have lengths.
void attend_forward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                    Stream& stream);
void attend_backward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                     Stream& stream);

// Return the size of the scratch. Both functions also build cuDNN's plans.
int64_t attend_forward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream);
int64_t attend_backward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream);

}  // namespace octavo::cuda
