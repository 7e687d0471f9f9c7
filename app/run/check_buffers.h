// What the check for silent corruption (app/guard/corruption_check.h) keeps on the device: room for its hashes, and for
// a micro-batch of another rank.
#pragma once

#include "app/run/batch_buffers.h"
#include "model/parameters.h"

namespace octavo {

class CheckBuffers {
 public:
  // Of the same size on all ranks. `moments`: how many the optimizer keeps of every parameter.
  CheckBuffers(const Config& config, const ParameterLayout& layout, int64_t moments, const Mesh& mesh, Arena& arena);

  // [n, 2] int32, each 64 bits (kernels/math/bit_hash.h): of what a rank holds, and of what a micro-batch leaves in
  // each of three passes.
  Tensor hashes;
  BatchBuffers neighbor;  // of one micro-batch
};

// What a pass over a micro-batch leaves, hashed: the losses, and the gradient of each unit.
inline int64_t pass_hashes(const ParameterLayout& layout) { return 1 + std::ssize(layout.units()); }
// More than a rank has hashes of what it holds.
int64_t most_state_hashes(const ModelConfig& model, const ParameterLayout& layout, int64_t moments,
                          int64_t tensor_ranks);

inline constexpr int64_t kCheckedPasses = 3;

}  // namespace octavo
