// The memory that a job needs on a rank, item by item (app/resolve/plan_memory.h), and the memory that there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/arena.h"

namespace octavo {

struct MemoryBudget {
  int64_t available = 0;  // Memory that may be allocated, in bytes. 0 if unknown; then everything fits.
  int64_t outside = 0;    // Memory outside of the arena, such as that of libraries.
  int64_t margin = 0;     // Memory that must stay free.
  int64_t needed(int64_t arena_bytes) const { return arena_bytes + outside + margin; }
  bool fits(int64_t arena_bytes) const { return available == 0 || needed(arena_bytes) <= available; }
};

const char* lifetime_name(Lifetime lifetime);  // Returns "whole run", "one step" or "one block".

// All tensors of one name.
struct MemoryItem {
  std::string name;
  int64_t count = 0;
  int64_t bytes = 0;
  Lifetime lifetime = Lifetime::kRun;
  Contents contents = Contents::kOther;
  std::vector<int64_t> blocks = {};  // Block or slot of each tensor (Arena::Item).
};

struct MemoryPlan {
  // Items of the arena, the largest first. The last item is the padding between tensors.
  std::vector<MemoryItem> items = {};
  std::vector<MemoryItem> overlaid = {};  // Items that share memory with `items` at other times.
  int64_t arena_bytes = 0;  // Size of the arena in bytes, the sum of `items`. This is what the run allocates.
  int64_t state_bytes = 0;  // Part of the arena for the training state, which is all but the validation.
  MemoryBudget budget = {};
  // Size of the arena on a rank of each pipeline stage, of which `arena_bytes` is the largest. Empty with a single
  // stage.
  std::vector<int64_t> stage_bytes = {};
  int64_t total_bytes() const { return arena_bytes + budget.outside; }
  bool fits() const { return budget.fits(arena_bytes); }
};

}  // namespace octavo
