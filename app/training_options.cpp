// What a run trains and keeps, decided by the memory there is; and what is said where nothing fits.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "app/memory_choice.h"
#include "app/plan_memory.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

TrainingOptions options_of(const Config& config, const ParameterLayout& layout, int64_t local_batch,
                           const MemoryChoice& choice) {
  return {.config = config,
          .layout = layout,
          .local_batch = local_batch,
          .sharding = {.reshard_after_forward = choice.reshard_after_forward,
                       .accumulate_unsharded = config.parallel.accumulate_unsharded},
          .checkpointing = choice.checkpointing};
}

// The bytes of a plan by item, of all blocks together.
std::map<std::string, int64_t> bytes_by_item(const Arena& plan) {
  std::map<std::string, int64_t> bytes;
  for (const Arena::Item& item : plan.items()) {
    const bool of_block = item.name.starts_with("activations ");
    bytes[of_block ? "activations" : item.name] += item.bytes;
  }
  return bytes;
}

std::string largest_items(const Arena& plan) {
  std::vector<std::pair<int64_t, std::string>> items;
  for (const auto& [name, bytes] : bytes_by_item(plan)) items.emplace_back(bytes, name);
  std::sort(items.rbegin(), items.rend());
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(items.size(), 4); ++i) {
    text += fmt::format("{}{} {:.1f} GiB", i == 0 ? "" : ", ", items[i].second, gib(items[i].first));
  }
  return text;
}

// Whether the same run at another training.micro_batch_size is valid and fits.
bool fits_with(const TrainingOptions& options, int64_t micro_batch_size, Runtime& runtime, int64_t available) {
  Config config = options.config;
  config.training.micro_batch_size = micro_batch_size;
  const TrainingOptions smaller{.config = config,
                                .layout = options.layout,
                                .local_batch = options.local_batch,
                                .sharding = options.sharding,
                                .checkpointing = options.checkpointing};
  try {
    validate(config, runtime.group().size(), Purpose::kSynthetic);
    return plan_training(smaller, training_rank(runtime)).used() <= available;
  } catch (const InputError&) {
    return false;
  }
}

// The largest training.micro_batch_size that would fit, else 0.
int64_t fitting_micro_batch(const TrainingOptions& options, Runtime& runtime, int64_t available) {
  for (int64_t size = options.config.training.micro_batch_size - 1; size > 0; --size) {
    if (options.local_batch % size == 0 && fits_with(options, size, runtime, available)) return size;
  }
  return 0;
}

// About the least parallel.data_parallel_shard whose part of the training state leaves room for the rest, else 0.
int64_t fitting_shards(const Arena& plan, int64_t shards, int64_t available) {
  std::map<std::string, int64_t> bytes = bytes_by_item(plan);
  int64_t state = 0;
  for (const char* name : {"master weights", "weights", "gradients", "exp_avg", "exp_avg_sq"}) state += bytes[name];
  const int64_t room = available - (plan.used() - state);
  if (room <= 0) return 0;
  const double factor = std::ceil(static_cast<double>(state) / static_cast<double>(room));
  return static_cast<int64_t>(factor) * shards;
}

std::string what_would_fit(const TrainingOptions& options, Runtime& runtime, const Arena& plan, int64_t available) {
  if (const int64_t size = fitting_micro_batch(options, runtime, available); size > 0) {
    return fmt::format("training.micro_batch_size {} would fit", size);
  }
  if (const int64_t shards = fitting_shards(plan, runtime.mesh().shard().size(), available); shards > 0) {
    return fmt::format("about {} ranks in parallel.data_parallel_shard would be enough", shards);
  }
  return fmt::format("{:.1f} GiB are lacking; a smaller data.seq_len or more parallel.tensor_parallel needs less",
                     gib(plan.used() - available));
}

void check_fits(const TrainingOptions& options, Runtime& runtime) {
  const Arena plan = plan_training(options, training_rank(runtime));
  const MemoryRoom room = memory_room(options.config, runtime);
  if (room.fits(plan.used())) return;
  const int64_t available = std::max<int64_t>(room.available - room.needed(0), 0);
  const MemoryChoice choice{options.checkpointing, options.sharding.reshard_after_forward};
  throw InputError(
      fmt::format("training needs {:.1f} GiB of memory a rank, but {:.1f} GiB are available, with "
                  "activation_checkpointing.mode {}; the "
                  "largest items are {}; {}",
                  gib(plan.used()), gib(available), describe(choice, options.config.model.num_layers),
                  largest_items(plan), what_would_fit(options, runtime, plan, available)));
}

}  // namespace

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const TrainingRank& rank,
                                        const FitsTraining& fits) {
  const std::vector<MemoryChoice> choices = memory_choices(config, rank.data_parallel.size() > 1);
  const int64_t local_batch = config.training.global_batch_size / rank.data_ranks;
  const auto options = [&](const MemoryChoice& choice) { return options_of(config, layout, local_batch, choice); };
  if (choices.size() == 1) return options(choices.front());
  const size_t chosen = first_fitting(choices, [&](const MemoryChoice& choice) { return fits(options(choice)); });
  return options(choices[std::min(chosen, choices.size() - 1)]);
}

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  const TrainingRank rank = training_rank(runtime);
  MemoryRoom room;
  runtime.group().agree([&] { room = memory_room(config, runtime); });
  return choose_training_options(config, layout, rank, [&](const TrainingOptions& options) {
    bool fits = true;
    runtime.group().agree([&] { fits = room.fits(planned_bytes(options, rank)); });
    return runtime.group().all_reduce_max(fits ? 0 : 1) == 0;
  });
}

TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  TrainingOptions options = choose_training_options(config, layout, runtime);
  runtime.group().agree([&] { check_fits(options, runtime); });
  return options;
}

void log_decisions(const TrainingOptions& options, int64_t bytes) {
  const Config& config = options.config;
  if (config.activation_checkpointing.mode != ActivationCheckpointing::Mode::kAuto) return;
  const MemoryChoice choice{options.checkpointing, options.sharding.reshard_after_forward};
  spdlog::info("activation checkpointing: {}; {:.1f} GiB a rank", describe(choice, config.model.num_layers),
               gib(bytes));
}

}  // namespace octavo
