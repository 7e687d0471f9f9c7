#include "app/resolve/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ranges>
#include <vector>

#include "app/config/config_check.h"
#include "app/config/config_names.h"
#include "app/resolve/memory_choice.h"
#include "app/resolve/mesh_choice.h"
#include "app/resolve/resolve.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

using Mode = ActivationCheckpointing::Mode;

struct Change {
  std::string words;
  std::function<void(Config&)> apply;
};

// Returns changes of single keys, the least costly first.
std::vector<Change> changes_to_try(const Config& config) {
  std::vector<Change> changes;
  if (config.parallel.reshard_after_forward == AutoBool::kFalse) {
    changes.push_back(
        {"parallel.reshard_after_forward=true", [](Config& c) { c.parallel.reshard_after_forward = AutoBool::kTrue; }});
  }
  if (config.parallel.accumulate_unsharded == AutoBool::kTrue) {
    changes.push_back(
        {"parallel.accumulate_unsharded=false", [](Config& c) { c.parallel.accumulate_unsharded = AutoBool::kFalse; }});
  }
  for (int64_t size = config.training.micro_batch_size / 2; size >= 1; size /= 2) {
    changes.push_back(
        {fmt::format("training.micro_batch_size={}", size), [size](Config& c) { c.training.micro_batch_size = size; }});
  }
  if (config.activation_checkpointing.mode != Mode::kAuto) {
    changes.push_back(
        {"activation_checkpointing.mode=auto", [](Config& c) { c.activation_checkpointing.mode = Mode::kAuto; }});
  }
  for (const auto& [name, dtype] : config_names::kStateType) {
    if (dtype_bytes(dtype) >= dtype_bytes(config.optimizer.state_dtype)) continue;
    changes.push_back({fmt::format("optimizer.state_dtype={}", name),
                       [dtype = dtype](Config& c) { c.optimizer.state_dtype = dtype; }});
  }
  // Ranks that share a sequence exchange less than ranks that divide the layers, but the sequence must be long.
  for (int64_t ranks = 2 * config.parallel.context_parallel; ranks <= max_context_parallel(config); ranks *= 2) {
    changes.push_back({fmt::format("parallel.context_parallel={}", ranks),
                       [ranks](Config& c) { c.parallel.context_parallel = ranks; }});
  }
  constexpr int64_t kMaxTensorParallel = 8;
  for (int64_t ranks = 2 * config.parallel.tensor_parallel; ranks <= kMaxTensorParallel; ranks *= 2) {
    changes.push_back({fmt::format("parallel.tensor_parallel={}", ranks),
                       [ranks](Config& c) { c.parallel.tensor_parallel = ranks; }});
  }
  return changes;
}

// Function that returns whether a config fits on a number of ranks with some changes.
using Fits = std::function<bool(StageConfig config, int64_t ranks, std::initializer_list<const Change*> changes)>;

// Finds the smallest number of ranks, doubled each time, on which the config fits with `change`. The batch grows with
// the ranks only if the ranks cannot divide the batch.
FittingChange find_fitting_ranks(const StageConfig& config, int64_t ranks, const Change& change, const Fits& fits) {
  constexpr int64_t kMaxRanks = 1 << 14;
  for (int64_t factor = 2; factor * ranks <= kMaxRanks; factor *= 2) {
    for (const bool larger_batch : {false, true}) {
      StageConfig more = config;
      std::vector<std::string> words;
      if (larger_batch) {
        more.training.global_batch_size *= factor;
        words.push_back(fmt::format("training.global_batch_size={}", more.training.global_batch_size));
      }
      if (config.parallel.data_parallel_shard != -1) {
        more.parallel.data_parallel_shard *= factor;
        words.push_back(fmt::format("parallel.data_parallel_shard={}", more.parallel.data_parallel_shard));
      }
      if (!change.words.empty()) words.push_back(change.words);
      if (fits(more, factor * ranks, {&change})) return {fmt::format("{}", fmt::join(words, " ")), factor * ranks};
    }
  }
  return {};
}

std::string largest_items(const MemoryPlan& plan) {
  constexpr size_t kLargest = 4;
  const auto text = [](const MemoryItem& item) { return fmt::format("{} {:.1f} GiB", item.name, gib(item.bytes)); };
  return fmt::format("{}", fmt::join(plan.items | std::views::take(kLargest) | std::views::transform(text), ", "));
}

}  // namespace

std::string FittingChange::words(int64_t now) const {
  if (ranks <= now) return overrides;
  return fmt::format("{} ranks{}{}", ranks, overrides.empty() ? "" : " and ", overrides);
}

FittingChange find_fitting_change(const Job& job) {
  StageConfig config = job.stated;
  const int64_t ranks = job.place.ranks;
  if (config.model.num_layers > kMaxLayersOfAdvice) return {};
  if (config.parallel.chooses_replicas()) config.parallel.data_parallel_replicate = job.mesh.shape.replicate;
  const Fits fits = [&](StageConfig changed, int64_t on_ranks, std::initializer_list<const Change*> made) {
    for (const Change* change : made) change->apply(changed);
    try {
      validate_stage(changed, on_ranks, Purpose::kSynthetic);
      return can_fit(changed, job.place, changed.parallel.mesh_shape(on_ranks));
    } catch (const InputError&) {
      return false;
    }
  };
  const std::vector<Change> changes = changes_to_try(config);
  for (const Change& change : changes) {
    if (fits(config, ranks, {&change})) return {change.words, ranks};
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    for (size_t j = i + 1; j < changes.size(); ++j) {
      if (fits(config, ranks, {&changes[i], &changes[j]})) return {changes[i].words + " " + changes[j].words, ranks};
    }
  }
  FittingChange found = find_fitting_ranks(config, ranks, {.words = "", .apply = [](Config&) {}}, fits);
  for (size_t i = 0; i < changes.size() && found.ranks == 0; ++i) {
    found = find_fitting_ranks(config, ranks, changes[i], fits);
  }
  return found;
}

std::string unfitting_message(const Job& job, const std::string& advice) {
  const MemoryPlan& plan = job.memory;
  return fmt::format(
      "training needs {:.1f} GiB of memory per rank, {:.1f} of them for libraries, and {:.1f} more must stay free, but "
      "{:.1f} GiB are available, with activation_checkpointing.mode {}; the largest items are {}; {}",
      gib(plan.total_bytes()), gib(plan.budget.outside), gib(plan.budget.margin), gib(plan.budget.available),
      describe_choice(job), largest_items(plan),
      advice.empty() ? "no change of one or two keys and no number of ranks was found that fits"
                     : "it would fit with " + advice);
}

void check_fits(const Job& job) {
  if (!job.memory.fits()) throw InputError(unfitting_message(job, find_fitting_change(job).words(job.place.ranks)));
}

}  // namespace octavo
