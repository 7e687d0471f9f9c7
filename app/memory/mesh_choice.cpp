#include "app/memory/mesh_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/stages.h"
#include "app/memory/memory_choice.h"
#include "app/memory/plan_memory.h"
#include "core/format.h"

namespace octavo {

namespace {

// Orders modes, other than auto, by the amount of recomputation.
std::pair<ActivationCheckpointing::Mode, double> recomputed(const ActivationCheckpointing& checkpointing) {
  const bool has_ratio = checkpointing.mode == ActivationCheckpointing::Mode::kBlock;
  return {checkpointing.mode, has_ratio ? checkpointing.ratio : 0};
}

// Returns the reason why there cannot be one replica per node on `nodes` nodes, or nothing.
std::optional<std::string> reason_against(const Config& config, const MeshShape& sharded, const MeshShape& copies,
                                          const PlannedDevice& device, ProcessGroup& group) {
  for (const Config& stage : stage_configs(config)) {
    const MemoryPlan with_copies = plan_memory(stage, copies, device, group);
    if (!with_copies.fits()) {
      return fmt::format("a replica on each of {} nodes does not fit: {:.2f} of {:.2f} GiB per rank, {:.2f} kept free",
                         copies.replicate, gib(with_copies.total_bytes()), gib(with_copies.budget.available),
                         gib(with_copies.budget.margin));
    }
    const MemoryPlan plan = plan_memory(stage, sharded, device, group);
    if (recomputed(with_copies.checkpointing) > recomputed(plan.checkpointing)) {
      return fmt::format(
          "a replica on each of {} nodes would need more recomputation (activation checkpointing {} instead of {})",
          copies.replicate, describe(MemoryChoice{with_copies.checkpointing}, stage.model.num_layers),
          describe(MemoryChoice{plan.checkpointing}, stage.model.num_layers));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string describe(const MeshShape& mesh) {
  std::string text;
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = mesh.*axis.size;
    if (axis.always_named || size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, size);
  }
  return text;
}

MeshChoice choose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node, const PlannedDevice& device,
                       ProcessGroup& group) {
  const MeshShape sharded = config.parallel.mesh_shape(ranks);
  if (!config.parallel.chooses_replicas() || ranks <= ranks_per_node || ranks == 1) return {sharded, ""};
  const std::string all_shard = "all ranks shard one replica: ";
  const int64_t same_samples = sharded.ranks() / sharded.data();
  if (ranks_per_node == 0 || ranks % ranks_per_node != 0) {
    return {sharded, all_shard + "the nodes have different numbers of ranks, or their ranks are not consecutive"};
  }
  if (ranks_per_node % same_samples != 0) {
    return {sharded, all_shard + fmt::format("the {} ranks of a node are no multiple of the {} ranks that process the "
                                             "same samples",
                                             ranks_per_node, same_samples)};
  }
  if (ranks_per_node == sharded.tensor) {
    return {sharded, all_shard + fmt::format("parallel.tensor_parallel takes all ranks of a node ({}), so a node would "
                                             "have a single shard",
                                             ranks_per_node)};
  }
  MeshShape copies = sharded;
  copies.replicate = ranks / ranks_per_node;
  copies.shard = ranks_per_node / same_samples;
  if (const std::optional<std::string> why = reason_against(config, sharded, copies, device, group)) {
    return {sharded, all_shard + *why};
  }
  return {copies,
          fmt::format("a replica on each of {} nodes, because it fits: gathers stay within nodes", copies.replicate)};
}

Runtime::ChooseMesh mesh_that_fits(const Config& config, ProcessGroup& group) {
  return [&](const Runtime& runtime) {
    const Machines machines(group);
    MeshChoice choice;
    if (machines.count() == 1) return choice;
    group.agree(
        [&] { choice = choose_mesh(config, group.size(), ranks_per_node(machines), unused_device(runtime), group); });
    // Ranks with less memory may not fit with the choice of other ranks. If any rank chose no replicas, no rank uses
    // them.
    const std::vector<std::string> reasons = group.all_gather(choice.mesh.replicate == 1 ? choice.reason : "");
    const auto other = std::find_if(reasons.begin(), reasons.end(), [](const auto& reason) { return !reason.empty(); });
    if (other != reasons.end()) choice = {.mesh = {}, .reason = *other};
    return choice;
  };
}

int64_t ranks_per_node(const Machines& machines) {
  const auto count = std::ssize(machines.ranks(0));
  for (int machine = 0; machine < machines.count(); ++machine) {
    const std::vector<int>& ranks = machines.ranks(machine);
    const bool in_order = std::ssize(ranks) == count && ranks.front() == machine * count &&
                          ranks.back() == ranks.front() + static_cast<int>(count) - 1;
    if (!in_order) return 0;
  }
  return count;
}

int64_t max_context_parallel(const Config& config) {
  constexpr int64_t kMinTokens = 16384;
  constexpr int64_t kMaxRanks = 8;
  int64_t ranks = 1;
  while (ranks < kMaxRanks && config.data.seq_len >= 2 * ranks * kMinTokens) ranks *= 2;
  return ranks;
}

}  // namespace octavo
