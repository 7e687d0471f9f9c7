#include "app/resolve/mesh_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/stages.h"
#include "app/resolve/memory_budget.h"
#include "app/resolve/memory_choice.h"
#include "app/resolve/resolve.h"
#include "core/format.h"

namespace octavo {

namespace {

// Returns a value that orders modes, other than auto, by their amount of recomputation.
std::pair<ActivationCheckpointing::Mode, double> recomputed(const ActivationCheckpointing& checkpointing) {
  const bool has_ratio = checkpointing.mode == ActivationCheckpointing::Mode::kBlock;
  return {checkpointing.mode, has_ratio ? checkpointing.ratio : 0};
}

// Returns the reason why the mesh `copies`, with one replica per node, is not chosen instead of `sharded`, or nothing.
std::optional<std::string> reason_against(const Config& config, const MeshShape& sharded, const MeshShape& copies,
                                          const Place& place) {
  for (const StageConfig& stage : stage_configs(config)) {
    const Job with_copies = resolve(stage, place, {copies, ""});
    const MemoryPlan& memory = with_copies.memory;
    if (!memory.fits()) {
      return fmt::format("a replica on each of {} nodes does not fit: {:.2f} of {:.2f} GiB per rank, {:.2f} kept free",
                         copies.replicate, gib(memory.total_bytes()), gib(memory.budget.available),
                         gib(memory.budget.margin));
    }
    const ActivationCheckpointing& more = with_copies.config.activation_checkpointing;
    const Job job = resolve(stage, place, {sharded, ""});
    const ActivationCheckpointing& less = job.config.activation_checkpointing;
    if (recomputed(more) > recomputed(less)) {
      return fmt::format(
          "a replica on each of {} nodes would need more recomputation (activation checkpointing {} instead of {})",
          copies.replicate, describe(more, stage.model.num_layers), describe(less, stage.model.num_layers));
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

MeshChoice choose_mesh(const Config& config, const Place& place) {
  const int64_t ranks = place.ranks;
  const int64_t per_node = place.ranks_per_node;
  const MeshShape sharded = config.parallel.mesh_shape(ranks);
  if (!config.parallel.chooses_replicas() || ranks == 1 || (place.equal_nodes && place.one_node()))
    return {sharded, ""};
  const std::string all_shard = "all ranks shard one replica: ";
  const int64_t same_samples = sharded.ranks() / sharded.data();
  if (!place.equal_nodes || ranks % per_node != 0) {
    return {sharded, all_shard + "the nodes have different numbers of ranks, or their ranks are not consecutive"};
  }
  if (per_node % same_samples != 0) {
    return {sharded, all_shard + fmt::format("the {} ranks of a node are no multiple of the {} ranks that process the "
                                             "same samples",
                                             per_node, same_samples)};
  }
  if (per_node == sharded.tensor) {
    return {sharded, all_shard + fmt::format("parallel.tensor_parallel takes all ranks of a node ({}), so a node would "
                                             "have a single shard",
                                             per_node)};
  }
  MeshShape copies = sharded;
  copies.replicate = ranks / per_node;
  copies.shard = per_node / same_samples;
  if (const std::optional<std::string> why = reason_against(config, sharded, copies, place)) {
    return {sharded, all_shard + *why};
  }
  return {copies,
          fmt::format("a replica on each of {} nodes, because it fits: gathers stay within nodes", copies.replicate)};
}

Setting with_chosen_mesh(Setting setting, ProcessGroup& group) {
  MeshChoice chosen;
  group.throw_on_all_ranks([&] { chosen = choose_mesh(setting.run, as_planned(setting.place)); });
  // Ranks with less memory may not fit with the choice of other ranks. So all ranks use replicas, or none does.
  const std::vector<std::string> reasons = group.all_gather(chosen.shape.replicate == 1 ? chosen.reason : "");
  const auto other = std::ranges::find_if(reasons, [](const auto& reason) { return !reason.empty(); });
  if (other == reasons.end()) {
    setting.mesh = chosen;
  } else {
    setting.mesh.reason = *other;
  }
  return setting;
}

int64_t max_context_parallel(const Config& config) {
  constexpr int64_t kMinTokens = 16384;
  constexpr int64_t kMaxRanks = 8;
  int64_t ranks = 1;
  while (ranks < kMaxRanks && config.data.seq_len >= 2 * ranks * kMinTokens) ranks *= 2;
  return ranks;
}

}  // namespace octavo
