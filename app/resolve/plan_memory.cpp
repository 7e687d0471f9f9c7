#include "app/resolve/plan_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "app/run/training_state.h"
#include "app/run/validation.h"

namespace octavo {

namespace {

// Groups the tensors by name, the largest group first.
std::vector<MemoryItem> group_items(const Arena& arena, bool overlaid) {
  std::map<std::string, MemoryItem> by_name;
  for (const Arena::Item& item : arena.items()) {
    if (item.overlaid != overlaid) continue;
    MemoryItem& group = by_name[item.name];
    group.name = item.name;
    ++group.count;
    group.bytes += item.bytes;
    group.lifetime = item.lifetime;
    group.contents = item.contents;
    if (item.block >= 0) group.blocks.push_back(item.block);
  }
  std::vector<MemoryItem> items;
  for (auto& [name, item] : by_name) items.push_back(std::move(item));
  std::ranges::stable_sort(items, std::greater(), &MemoryItem::bytes);
  return items;
}

MemoryItem padding_of(const Arena& arena, const std::vector<MemoryItem>& items) {
  int64_t bytes = arena.used();
  for (const MemoryItem& item : items) bytes -= item.bytes;
  return {.name = "padding", .count = 1, .bytes = bytes, .lifetime = Lifetime::kRun};
}

// The arena of a rank, and how much of it the training state takes.
struct PlannedArena {
  Arena arena;
  int64_t state_bytes = 0;
};

// With precision.guard, the training state takes the memory of the larger one of the states in FP8 and bfloat16.
PlannedArena plan_arena(const Job& job, const Mesh& mesh) {
  Arena arena = plan_training(job, mesh);
  if (has_precision_guard(job.config)) {
    const int64_t more = plan_training(in_other_precision(job), mesh).used() - arena.used();
    if (more > 0) arena.allocate("bfloat16 for precision.guard", DType::kUInt8, {more});
  }
  const int64_t state_bytes = arena.used();
  if (!job.config.data.validation.empty()) const ValidationBuffers validation(job.config, mesh, arena);
  return {std::move(arena), state_bytes};
}

}  // namespace

int64_t planned_bytes(const Job& job, const Mesh& mesh) { return plan_arena(job, mesh).arena.used(); }

MemoryPlan plan_memory(const Job& job, const Mesh& mesh, const MemoryBudget& budget) {
  const auto [arena, state_bytes] = plan_arena(job, mesh);
  MemoryPlan plan{.items = group_items(arena, false),
                  .overlaid = group_items(arena, true),
                  .arena_bytes = arena.used(),
                  .state_bytes = state_bytes,
                  .budget = budget};
  plan.items.push_back(padding_of(arena, plan.items));
  return plan;
}

}  // namespace octavo
