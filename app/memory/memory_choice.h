// The choices between keeping tensors in memory and recomputing them, cheapest first. They combine whether backward
// gathers the full weights again (parallel.reshard_after_forward) and which activations are recomputed
// (activation_checkpointing.mode). If the config says auto, the first choice that fits is used:
//
//   1. All activations and all gathered weights are kept.
//   2. All activations are kept, and weights are gathered again.
//   3. Mode selective, and gathered weights are kept.
//   4. Mode selective, and weights are gathered again.
//   5. Mode block with 2, 3, ... recomputed blocks.
//   6. All blocks are recomputed.
//
// The activations of the last recomputed block are in memory anyway, so recomputing a single block would save nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/config/config.h"

namespace octavo {

struct MemoryChoice {
  ActivationCheckpointing checkpointing;
  bool reshard_after_forward = false;
};

// Returns the choices that the config leaves open, at least one. `sharded` says whether weights are sharded and have to
// be gathered.
std::vector<MemoryChoice> memory_choices(const Config& config, bool sharded);

// Returns the index of the first choice that fits, or the number of choices if none fits. Uses bisection over the
// number of recomputed blocks, because recomputing more blocks takes less memory.
size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits);

// Describes a choice, such as "selective, weights gathered again in backward".
std::string describe(const MemoryChoice& choice, int64_t num_layers);

}  // namespace octavo
