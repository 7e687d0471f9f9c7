#include "app/plan_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "app/validation.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

// Rank 0 of a mesh that is not there.
class PlannedRank {
 public:
  PlannedRank(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group)
      : mesh_(mesh),
        stream_(device.device == Device::kCuda ? Stream::planned(device.multiprocessors) : Stream::cpu()),
        shard_(axis(group, "shard", mesh.shard)),
        replicate_(axis(group, "replicate", mesh.replicate)),
        tensor_(axis(group, "tensor", mesh.tensor)) {
    stream_.set_deterministic(config.training.deterministic);
  }

  TrainingRank rank() {
    return {.stream = stream_,
            .data_parallel = {shard_.get(), replicate_.get()},
            .tensor = *tensor_,
            .data_ranks = mesh_.data()};
  }

 private:
  static std::unique_ptr<Communicator> axis(ProcessGroup& group, const char* name, int64_t size) {
    return make_planned_communicator(group, {.name = name, .color = 0, .rank = 0, .size = static_cast<int>(size)});
  }

  MeshShape mesh_;
  Stream stream_;
  std::unique_ptr<Communicator> shard_, replicate_, tensor_;
};

constexpr int64_t kGpusPerMachine = 8;

struct NamedLifetime {
  std::string_view prefix;
  Lifetime lifetime;
};

// By the beginning of a tensor's name; the first that fits. All else lasts.
constexpr auto kLifetimes = std::to_array<NamedLifetime>({
    {"activations", Lifetime::kStep},
    {"head ", Lifetime::kStep},
    {"losses", Lifetime::kStep},
    {"loss", Lifetime::kStep},
    {"residual delta", Lifetime::kStep},
    {"token batch", Lifetime::kStep},
    {"logit", Lifetime::kBlock},
    {"gradient of ", Lifetime::kBlock},
    {"full gradients of ", Lifetime::kBlock},
    {"reduced gradient", Lifetime::kBlock},
    {"norm", Lifetime::kBlock},
    {"swiglu", Lifetime::kBlock},
    {"qkv", Lifetime::kBlock},
    {"attention", Lifetime::kBlock},
    {"lse", Lifetime::kBlock},
    {"h1", Lifetime::kBlock},
    {"rstd", Lifetime::kBlock},
    {"gate_up", Lifetime::kBlock},
    {"fp8 rows", Lifetime::kBlock},
    {"fp8 row scales", Lifetime::kBlock},
    {"fp8 column", Lifetime::kBlock},
    {"fp8 tokens", Lifetime::kBlock},
    {"tokens of all ranks", Lifetime::kBlock},
    {"workspace", Lifetime::kBlock},
});

Lifetime lifetime_of(std::string_view name, const TrainingOptions& options) {
  if (name == "gathered blocks") return options.sharding.reshard_after_forward ? Lifetime::kBlock : Lifetime::kRun;
  if (name.starts_with("full gradients") && options.sharding.accumulate_unsharded) return Lifetime::kStep;
  for (const NamedLifetime& known : kLifetimes) {
    if (name.starts_with(known.prefix)) return known.lifetime;
  }
  return Lifetime::kRun;
}

// The largest first.
std::vector<MemoryItem> group_items(const Arena& arena, const TrainingOptions& options, bool overlaid) {
  std::map<std::string, MemoryItem> by_name;
  for (const Arena::Item& item : arena.items()) {
    if (item.overlaid != overlaid) continue;
    MemoryItem& group = by_name[item.name];
    group.name = item.name;
    ++group.count;
    group.bytes += item.bytes;
    group.lifetime = lifetime_of(item.name, options);
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

}  // namespace

const char* lifetime_name(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::kRun:
      return "whole run";
    case Lifetime::kStep:
      return "one step";
    case Lifetime::kBlock:
      return "one block";
  }
  return "?";
}

int64_t outside_bytes(const MeshShape& mesh, bool registered) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kContext = 700 * kMiB;        // the 1.8B on one H200: 60.3 GiB in use
  constexpr int64_t kNccl = 1000 * kMiB;          // once there are several ranks: the 8B on four, 121.1 GiB in use
  constexpr int64_t kCommunicator = 1000 * kMiB;  // of each further axis
  constexpr int64_t kRegistered = 1500 * kMiB;    // the 8B on four: 103.9, 91.3 and 50.5 GiB in use, by the mode
  const int64_t axes = (mesh.replicate > 1 ? 1 : 0) + (mesh.shard > 1 ? 1 : 0) + (mesh.tensor > 1 ? 1 : 0);
  return kContext + (axes > 0 ? kNccl + (axes - 1) * kCommunicator : 0) + (registered ? kRegistered : 0);
}

MemoryPlan plan_memory(const Config& config, const MeshShape& mesh, const PlannedDevice& device, ProcessGroup& group) {
  PlannedRank planned(config, mesh, device, group);
  const TrainingRank rank = planned.rank();
  const ParameterLayout layout(config.model, {.rank = 0, .size = mesh.tensor});
  MemoryPlan plan;
  plan.available_bytes = device.memory_bytes;
  const bool registered = config.parallel.registers_memory(mesh, mesh.ranks() <= kGpusPerMachine);
  plan.outside_bytes = device.device == Device::kCuda ? outside_bytes(mesh, registered) : 0;
  const auto fits = [&](const TrainingOptions& options) {
    return plan.available_bytes == 0 ||
           fits_memory(plan_training(options, rank).used(), plan.available_bytes - plan.outside_bytes);
  };
  const TrainingOptions options = choose_training_options(config, layout, rank, fits);
  Arena arena = plan_training(options, rank);
  if (!config.data.validation.empty()) const ValidationBuffers validation(config, arena, rank.stream);
  plan.sharding = options.sharding;
  plan.checkpointing = options.checkpointing;
  plan.items = group_items(arena, options, false);
  plan.items.push_back(padding_of(arena, plan.items));
  plan.overlaid = group_items(arena, options, true);
  plan.arena_bytes = arena.used();
  return plan;
}

}  // namespace octavo
