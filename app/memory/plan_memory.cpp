#include "app/memory/plan_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "app/run/validation.h"
#include "model/parameters/pipeline_stages.h"

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

// One rank of each pipeline stage. All ranks of a stage need equal memory.
class StageRanks {
 public:
  StageRanks(const Config& config, const MeshShape& shape, int64_t all_to_all_load, Stream& stream,
             Watchdog& watchdog) {
    for (int64_t stage = 0; stage < shape.pipeline; ++stage) {
      const int64_t rank = stage * shape.ranks() / shape.pipeline;
      meshes_.push_back(std::make_unique<Mesh>(shape, all_to_all_load, stream, watchdog, rank));
      layouts_.push_back(layout_of_rank(config.model, config.parallel, *meshes_.back()));
    }
  }

  const Mesh& mesh() const { return *meshes_.front(); }
  const ParameterLayout& layout() const { return layouts_.front(); }

  // Returns whether every stage fits.
  bool fit(const TrainingOptions& options, const MemoryBudget& budget) const {
    for (size_t stage = 0; stage < meshes_.size(); ++stage) {
      if (!budget.fits(planned_bytes(of_stage(options, stage), *meshes_[stage]))) return false;
    }
    return true;
  }

  // Returns the plan of the stage that needs the most memory.
  MemoryPlan plan(const TrainingOptions& options, const MemoryBudget& budget) const {
    MemoryPlan largest = plan_memory(options, mesh(), budget);
    for (size_t stage = 1; stage < meshes_.size(); ++stage) {
      MemoryPlan plan = plan_memory(of_stage(options, stage), *meshes_[stage], budget);
      if (plan.arena_bytes > largest.arena_bytes) largest = std::move(plan);
    }
    return largest;
  }

 private:
  TrainingOptions of_stage(const TrainingOptions& o, size_t stage) const {
    return {o.config, layouts_[stage], o.local_batch, o.sharding, o.checkpointing};
  }

  std::vector<std::unique_ptr<Mesh>> meshes_;
  std::vector<ParameterLayout> layouts_;
};

// Plans the first choice for which the result of `make_fits` is true, or the last one.
MemoryPlan plan_choice(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group,
                       const std::function<FitsTraining(const MemoryBudget&, const StageRanks&)>& make_fits) {
  Stream stream = device.device == Device::kCuda ? Stream::planned(device.multiprocessors) : Stream::cpu();
  stream.set_deterministic(config.training.deterministic);
  const StageRanks ranks(config, shape, shape.all_to_all_load(device.gpus_per_node), stream, group.watchdog());
  const MemoryBudget budget = memory_budget(config, shape, device);
  return ranks.plan(choose_training_options(config, ranks.layout(), ranks.mesh(), make_fits(budget, ranks)), budget);
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
  return plan_choice(config, shape, device, group,
                     [](const MemoryBudget& budget, const StageRanks& ranks) -> FitsTraining {
                       return [&](const TrainingOptions& options) { return ranks.fit(options, budget); };
                     });
}

bool can_fit(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group) {
  // The function says that no choice fits, so the last one is planned.
  return plan_choice(config, shape, device, group,
                     [](const MemoryBudget&, const StageRanks&) -> FitsTraining {
                       return [](const TrainingOptions&) { return false; };
                     })
      .fits();
}

}  // namespace octavo
