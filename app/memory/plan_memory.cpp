#include "app/memory/plan_memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "app/memory/memory_choice.h"
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

Stream planned_stream(const Config& config, const PlannedDevice& device) {
  Stream stream = device.device == Device::kCuda ? Stream::planned(device.multiprocessors) : Stream::cpu();
  stream.set_deterministic(config.training.deterministic);
  return stream;
}

// One rank of each pipeline stage. All ranks of a stage need equal memory.
class StageRanks {
 public:
  StageRanks(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group)
      : config_(config),
        stream_(planned_stream(config, device)),
        budget_(memory_budget(config, shape, device)),
        stages_(pipeline_stages(config.model, config.parallel, shape.pipeline)) {
    const int64_t load = shape.all_to_all_load(device.gpus_per_node);
    for (int64_t stage = 0; stage < shape.pipeline; ++stage) {
      const int64_t rank = stage * shape.ranks() / shape.pipeline;
      meshes_.push_back(std::make_unique<Mesh>(shape, load, stream_, group.watchdog(), rank));
      layouts_.push_back(layout_of_rank(config.model, config.parallel, *meshes_.back()));
    }
  }

  // Returns the first choice that `fits`, or the last one.
  TrainingOptions choose(const FitsTraining& fits) const {
    return choose_training_options(config_, layouts_.front(), *meshes_.front(), fits);
  }

  // Returns whether every stage fits.
  bool fit(const TrainingOptions& options) const {
    const std::vector<size_t> equal =
        first_equal_stages(stages_, layer_specs(config_.model, config_.precision, options.checkpointing));
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (equal[stage] != stage) continue;
      if (!budget_.fits(planned_bytes(of_stage(options, stage), *meshes_[stage]))) return false;
    }
    return true;
  }

  // Returns the plan of the stage that needs the most memory.
  MemoryPlan plan(const TrainingOptions& options) const {
    MemoryPlan largest;
    std::vector<int64_t> bytes;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      MemoryPlan plan = plan_memory(of_stage(options, stage), *meshes_[stage], budget_);
      bytes.push_back(plan.arena_bytes);
      if (stage == 0 || plan.arena_bytes > largest.arena_bytes) largest = std::move(plan);
    }
    if (bytes.size() > 1) largest.stage_bytes = std::move(bytes);
    return largest;
  }

 private:
  TrainingOptions of_stage(const TrainingOptions& o, size_t stage) const {
    return {o.config, layouts_[stage], o.local_batch, o.sharding, o.checkpointing};
  }

  const Config& config_;
  Stream stream_;
  MemoryBudget budget_;
  std::vector<StageLayers> stages_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
  std::vector<ParameterLayout> layouts_;
};

}  // namespace

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const Mesh& mesh,
                                        const FitsTraining& fits) {
  const std::vector<MemoryChoice> choices = memory_choices(config, mesh.shape());
  const auto options = [&](const MemoryChoice& choice) -> TrainingOptions {
    return {.config = config,
            .layout = layout,
            .local_batch = config.training.global_batch_size / mesh.shape().data(),
            .sharding = {.reshard_after_forward = choice.reshard_after_forward,
                         .accumulate_unsharded = choice.accumulate_unsharded},
            .checkpointing = choice.checkpointing};
  };
  if (choices.size() == 1) return options(choices.front());
  const size_t chosen = first_fitting(choices, [&](const MemoryChoice& choice) { return fits(options(choice)); });
  return options(choices[std::min(chosen, choices.size() - 1)]);
}

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
  const StageRanks ranks(config, shape, device, group);
  return ranks.plan(ranks.choose([&](const TrainingOptions& options) { return ranks.fit(options); }));
}

bool can_fit(const Config& config, const MeshShape& shape, const PlannedDevice& device, ProcessGroup& group) {
  const StageRanks ranks(config, shape, device, group);
  return ranks.fit(ranks.choose([](const TrainingOptions&) { return false; }));
}

}  // namespace octavo
