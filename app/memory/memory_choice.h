// The choices of what a run keeps in memory and what it recomputes, cheapest first: the full weights, gathered again in
// backward or not (parallel.reshard_after_forward), and the activations (activation_checkpointing.mode). If the config
// says auto, the first choice that fits is taken:
//
//   all activations, weights kept;  all activations;  selective, weights kept;  selective;
//   2, 3, ... of the blocks recomputed whole;  all of them
//
// The activations of the last recomputed block are still in memory, so recomputing one block alone would save nothing.
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

// Returns the choices that the config leaves open, one or more. `sharded` says whether weights are gathered at all.
std::vector<MemoryChoice> memory_choices(const Config& config, bool sharded);

// Returns the index of the first choice that fits, or the number of choices. `fits` is called for few numbers of
// blocks, because recomputing more of them takes less memory.
size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits);

// Returns "selective, weights gathered again in backward".
std::string describe(const MemoryChoice& choice, int64_t num_layers);

}  // namespace octavo
