// Lists the parts of the training state that more than one rank holds:
//
//   replicate axis  each unit's shard of the master weights, of the weights that are cast from them and gathered,
//                   and of the optimizer states
//   tensor axis     the shards of the norms, which are equal on all tensor-parallel ranks; and each kv head that
//                   several ranks hold, of which each rank has the slices in its shard
//   all ranks       the amax history of delayed FP8 scaling
#pragma once

#include <vector>

#include "app/observers/corruption_verdict.h"
#include "app/run/training_state.h"

namespace octavo {

// A slice of a part. The hash of the part is the sum of its slices' hashes (kernels/math/bit_hash.h).
struct HashedSlice {
  HashedPart part;
  Tensor data;
  int64_t begin = 0;  // Offset of the slice in the part, in elements.
};

// Returns the slices of all parts. Their tensors are views of the tensors in `state`.
std::vector<HashedSlice> replicated_parts(const ModelConfig& config, TrainingState& state);

}  // namespace octavo
