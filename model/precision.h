// The precision section of the config: what the step computes in.
#pragma once

#include "kernels/core/dtype.h"

namespace octavo {

struct PrecisionConfig {
  DType compute = DType::kBFloat16;  // activations and the weights that products read: bfloat16, or float32 on the CPU
};

}  // namespace octavo
