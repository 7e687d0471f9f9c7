// Attention on GPUs for the sequences of one geometry. Uses FlashAttention-3
// (kernels/flash_attention/flash_attention.h) if it has kernels for the heads and no sequence is padded, otherwise
// cuDNN (kernels/attention/sdpa_plans_cudnn.h).
#pragma once

#include "core/stream.h"
#include "kernels/attention_shapes/sdpa_geometry.h"

namespace octavo::cuda {

// Kinds of lengths that sequences may have before their padding.
enum class SdpaLengths : uint8_t {
  // All sequences have the length of the geometry; there is no padding.
  kFull,
  // Each sequence has its own length, with as many queries as keys.
  kSquare,
  // Each sequence has its own numbers of queries and keys; the last keys belong to the queries.
  kAtTheEnd
};

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
