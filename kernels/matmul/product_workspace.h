// What a GPU's products ask of a stream's workspace, whatever their sizes; known to builds without CUDA too, which plan
// for GPUs.
#pragma once

#include <cstdint>

namespace octavo {

inline constexpr int64_t kProductWorkspaceBytes = 64 << 20;

}  // namespace octavo
