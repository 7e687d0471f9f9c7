#include "app/memory/plan_memory.h"

#include <algorithm>
#include <functional>
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

// Returns the size of the state with which precision.guard compares, in bytes. 0 without precision.guard.
int64_t bytes_without_fp8(const TrainingOptions& options, const Mesh& mesh) {
  if (!has_precision_guard(options.config)) return 0;
  const Config other = without_fp8(options.config);
  return plan_training(options.with(other), mesh).used();
}

Arena plan_arena(const TrainingOptions& options, const Mesh& mesh) {
  Arena arena = plan_training(options, mesh);
  if (const int64_t more = bytes_without_fp8(options, mesh) - arena.used(); more > 0) {
    arena.allocate("bfloat16 for precision.guard", DType::kUInt8, {more});
  }
  if (!options.config.data.validation.empty()) const ValidationBuffers validation(options.config, mesh, arena);
  return arena;
}

// Plans the first choice for which the result of `make_fits` is true, or the last one.
MemoryPlan plan_choice(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group,
                       const std::function<FitsTraining(const MemoryBudget&, const Mesh&)>& make_fits) {
  Stream stream = device.device == Device::kCuda ? Stream::planned(device.multiprocessors) : Stream::cpu();
  stream.set_deterministic(config.training.deterministic);
  const Mesh mesh(shape, shape.all_to_all_load(device.gpus_per_node), stream, group.watchdog());
  const ParameterLayout layout(config.model, {.rank = 0, .size = shape.tensor});
  const MemoryBudget budget = memory_budget(config, shape, device);
  return plan_memory(choose_training_options(config, layout, mesh, make_fits(budget, mesh)), mesh, budget);
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
  return std::max(plan_training(options, mesh).used(), bytes_without_fp8(options, mesh));
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
  return plan_choice(config, shape, device, group, [](const MemoryBudget& budget, const Mesh& mesh) -> FitsTraining {
    return [&](const TrainingOptions& options) { return budget.fits(planned_bytes(options, mesh)); };
  });
}

bool can_fit(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group) {
  // The function says that no choice fits, so the last one is planned.
  return plan_choice(config, shape, device, group,
                     [](const MemoryBudget&, const Mesh&) -> FitsTraining {
                       return [](const TrainingOptions&) { return false; };
                     })
      .fits();
}

}  // namespace octavo
