#include "app/memory/plan_memory.h"

#include <algorithm>
#include <map>

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
  items.reserve(by_name.size());
  for (auto& [name, item] : by_name) items.push_back(std::move(item));
  std::stable_sort(items.begin(), items.end(),
                   [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
  return items;
}

MemoryItem padding_of(const Arena& arena, const std::vector<MemoryItem>& items) {
  int64_t bytes = arena.used();
  for (const MemoryItem& item : items) bytes -= item.bytes;
  return {.name = "padding", .count = 1, .bytes = bytes, .lifetime = Lifetime::kRun};
}

Arena plan_arena(const TrainingOptions& options, const Mesh& mesh) {
  Arena arena = plan_training(options, mesh);
  if (const int64_t more = state_bytes(options, mesh) - arena.used(); more > 0) {
    arena.allocate("bfloat16 for precision.guard", DType::kUInt8, {more});
  }
  if (!options.config.data.validation.empty()) const ValidationBuffers validation(options.config, mesh, arena);
  return arena;
}

}  // namespace

bool has_precision_guard(const Config& config) {
  return config.precision_guard.every > 0 && uses_fp8(config.precision);
}

Config without_fp8(const Config& config) {
  Config other = config;
  other.precision = without_fp8(config.precision);
  return other;
}

int64_t state_bytes(const TrainingOptions& options, const Mesh& mesh) {
  const int64_t bytes = plan_training(options, mesh).used();
  if (!has_precision_guard(options.config)) return bytes;
  const Config other = without_fp8(options.config);
  return std::max(bytes, plan_training(options.with(other), mesh).used());
}

const char* lifetime_name(Lifetime lifetime) {
  constexpr const char* kNames[] = {"whole run", "one step", "one block"};
  return kNames[static_cast<size_t>(lifetime)];
}

int64_t planned_bytes(const TrainingOptions& options, const Mesh& mesh) { return plan_arena(options, mesh).used(); }

MemoryPlan plan_memory(const TrainingOptions& options, const Mesh& mesh, const MemoryBudget& budget) {
  const Arena arena = plan_arena(options, mesh);
  MemoryPlan plan{.sharding = options.sharding,
                  .checkpointing = options.checkpointing,
                  .items = group_items(arena, false),
                  .overlaid = group_items(arena, true),
                  .arena_bytes = arena.used(),
                  .budget = budget};
  plan.items.push_back(padding_of(arena, plan.items));
  return plan;
}

MemoryPlan plan_memory(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group) {
  Stream stream = device.device == Device::kCuda ? Stream::planned(device.multiprocessors) : Stream::cpu();
  stream.set_deterministic(config.training.deterministic);
  const Mesh mesh(shape, shape.all_to_all_load(device.gpus_per_node), stream, group.watchdog());
  const ParameterLayout layout(config.model, {.rank = 0, .size = shape.tensor});
  const MemoryBudget budget = memory_budget(config, shape, device);
  const TrainingOptions options = choose_training_options(
      config, layout, mesh, [&](const TrainingOptions& some) { return budget.fits(planned_bytes(some, mesh)); });
  return plan_memory(options, mesh, budget);
}

}  // namespace octavo
