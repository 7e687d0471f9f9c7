// The parallel section of the config: how the ranks are arranged.
#pragma once

#include <cstdint>

namespace octavo {

// Whether a rank forgets the full weights of a unit after its forward pass, and gathers them anew in backward.
enum class Reshard : uint8_t {
  kAuto,  // where they do not all fit into memory
  kTrue,
  kFalse,
};

struct ParallelConfig {
  int64_t data_parallel_shard = -1;     // ranks that share one copy of the optimizer state (FSDP); -1: all that is left
  int64_t data_parallel_replicate = 1;  // copies of that
  int64_t tensor_parallel = 1;          // ranks that split each layer
  Reshard reshard_after_forward = Reshard::kAuto;
  bool accumulate_unsharded = false;  // keep full gradients over micro-batches and reduce them once a step

  // Ranks that work on different samples. Throws InputError unless the sizes multiply to `ranks`.
  int64_t data_parallel_ranks(int64_t ranks) const;
};

}  // namespace octavo
