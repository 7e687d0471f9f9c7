// The parts of the state that a rank of a training run holds and another rank holds as well:
//
//   over the replicate axis   each unit's shard of the master weights, of the weights that are cast from them and
//                             travel, and of what the optimizer keeps
//   over the tensor axis      the norms' shards, which all its ranks hold alike; each kv head that has copies, of which
//                             a rank has the stretches in its shard
//   over all ranks            the amax history of delayed FP8 scaling
#pragma once

#include <vector>

#include "app/observers/corruption_verdict.h"
#include "app/run/training_state.h"

namespace octavo {

// A stretch of a part, whose hash (kernels/math/bit_hash.h) is the sum of the hashes of its stretches.
struct HashedStretch {
  HashedPart part;
  Tensor data;
  int64_t begin = 0;  // the place of the stretch in the part, in elements
};

// The tensors are views of what `state` holds.
std::vector<HashedStretch> replicated_parts(const ModelConfig& config, TrainingState& state);

}  // namespace octavo
