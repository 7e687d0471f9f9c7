// The parallel section of the config: how the ranks are arranged.
#pragma once

#include <cstdint>

namespace octavo {

struct ParallelConfig {
  int64_t data_parallel_shard = -1;     // ranks that share one copy of the optimizer state (FSDP); -1: all that is left
  int64_t data_parallel_replicate = 1;  // copies of that
  int64_t tensor_parallel = 1;          // ranks that split each layer

  // Ranks that work on different samples. Throws InputError unless the sizes multiply to `ranks`.
  int64_t data_parallel_ranks(int64_t ranks) const;
};

}  // namespace octavo
