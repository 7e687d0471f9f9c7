// The choices of what a run keeps in memory and what it recomputes, cheapest first: the full weights, gathered again in
// backward or not (parallel.reshard_after_forward), and the activations (activation_checkpointing.mode). If the config
// says auto, the first choice that fits is taken:
//
//   all activations, weights kept;  all activations;  selective, weights kept;  selective;
//   2, 3, ... of the blocks recomputed whole;  all of them
//
// (Of the recomputed blocks the last one's activations are still there, so one alone would save nothing.)
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

// Those that the config leaves open, one or more. `sharded`: weights are gathered at all.
std::vector<MemoryChoice> memory_choices(const Config& config, bool sharded);

// The first that fits, or how many there are. `fits` is asked for few of the blocks' numbers: more of them take less.
size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits);

// "selective, weights gathered again in backward".
std::string describe(const MemoryChoice& choice, int64_t num_layers);

}  // namespace octavo
