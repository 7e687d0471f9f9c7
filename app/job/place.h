// Where a job runs.
#pragma once

#include <cstdint>
#include <optional>

#include "core/stream.h"

namespace octavo {

// The ranks of a job and the device of each. A run observes its place, and a plan is told it.
struct Place {
  Device device = Device::kCuda;
  int64_t ranks = 1;
  int64_t ranks_per_node = 8;  // The largest number of ranks on one node.
  bool equal_nodes = true;     // Whether every node has that many ranks, with consecutive numbers.
  int threads = 1;             // Number of CPU threads of each rank.
  int multiprocessors = 132;   // Number of multiprocessors of each GPU.
  int64_t memory_bytes = 0;    // Total memory of the device per rank. 0 if unknown; then everything fits.
  // Free memory of the device per rank when a run decides. Empty in a plan.
  std::optional<int64_t> free_bytes = std::nullopt;

  bool one_node() const { return ranks <= ranks_per_node; }
};

}  // namespace octavo
