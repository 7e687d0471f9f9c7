// CPU reference of attention. See kernels/attention/sdpa.h for the formulas.
#pragma once

#include "kernels/attention/sdpa.h"

namespace octavo::cpu {

void sdpa_forward(const SdpaForward& args, Stream& stream);
void sdpa_backward(const SdpaBackward& args, Stream& stream);
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype);

}  // namespace octavo::cpu
