// The workspace that matmuls of any size on a GPU need. Builds without CUDA use it to plan for GPUs.
#pragma once

#include <cstdint>

namespace octavo {

inline constexpr int64_t kMatmulWorkspaceBytes = 64 << 20;

}  // namespace octavo
