// The CPU reference of attention; see kernels/attention/sdpa.h for the formulas.
#pragma once

#include "kernels/attention/context_sdpa.h"

namespace octavo::cpu {

void sdpa_forward(const SdpaForward& args, Stream& stream);
void sdpa_backward(const SdpaBackward& args, Stream& stream);
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype);

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream);
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream);
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype);

}  // namespace octavo::cpu
