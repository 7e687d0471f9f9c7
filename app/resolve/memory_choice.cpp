#include "app/resolve/memory_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/config/config_names.h"

namespace octavo {

namespace {

using Mode = ActivationCheckpointing::Mode;

bool recomputes_blocks(const MemoryChoice& choice) {
  return choice.checkpointing.mode == Mode::kBlock || choice.checkpointing.mode == Mode::kFull;
}

// Returns the values that a key leaves open, the fastest first. `open` are the values that auto leaves open.
std::vector<bool> values_of(AutoBool given, const std::vector<bool>& open) {
  return given == AutoBool::kAuto ? open : std::vector<bool>{given == AutoBool::kTrue};
}

}  // namespace

bool may_accumulate_unsharded(const Config& config, const MeshShape& mesh) {
  const TrainingConfig& training = config.training;
  const bool several = training.micro_batch_size * mesh.data() < training.global_batch_size;
  const bool repeats_bit_for_bit = config.device == DeviceChoice::kCpu || training.deterministic;
  const bool in_float32 = config.precision.exchanged_gradients() == DType::kFloat32;
  return mesh.shards() > 1 && several && !repeats_bit_for_bit && in_float32;
}

std::vector<MemoryChoice> memory_choices(const Config& config, const MeshShape& mesh) {
  using Values = std::vector<bool>;
  const ActivationCheckpointing& given = config.activation_checkpointing;
  const Values open_reshards = mesh.shards() > 1 ? Values{false, true} : Values{false};
  const Values open_accumulates = may_accumulate_unsharded(config, mesh) ? Values{true, false} : Values{false};
  const Values reshards = values_of(config.parallel.reshard_after_forward, open_reshards);
  const Values accumulates = values_of(config.parallel.accumulate_unsharded, open_accumulates);
  std::vector<MemoryChoice> choices;
  const auto add = [&](const ActivationCheckpointing& checkpointing) {
    for (const bool accumulate : accumulates) {
      for (const bool reshard : reshards) choices.push_back({checkpointing, reshard, accumulate});
    }
  };
  if (given.mode != Mode::kAuto) {
    add(given);
    return choices;
  }
  add({.mode = Mode::kNone});
  add({.mode = Mode::kSelective});
  const int64_t layers = config.model.num_layers;
  for (int64_t blocks = mesh.pipeline > 1 ? 1 : 2; blocks < layers; ++blocks) {
    const double ratio = static_cast<double>(blocks) / static_cast<double>(layers);
    choices.push_back({{.mode = Mode::kBlock, .ratio = ratio}, reshards.back(), accumulates.back()});
  }
  choices.push_back({{.mode = Mode::kFull}, reshards.back(), accumulates.back()});
  return choices;
}

size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits) {
  const bool mode_is_given = choices.front().checkpointing.mode == choices.back().checkpointing.mode;
  const auto blocks = mode_is_given ? choices.end() : std::ranges::find_if(choices, recomputes_blocks);
  auto found = std::find_if(choices.begin(), blocks, fits);
  if (found == blocks) {
    found = std::partition_point(blocks, choices.end(), [&](const MemoryChoice& choice) { return !fits(choice); });
  }
  return static_cast<size_t>(found - choices.begin());
}

Job with_choice(Job job, const MemoryChoice& choice) {
  job.config.activation_checkpointing = choice.checkpointing;
  job.config.parallel.reshard_after_forward = auto_bool(choice.reshard_after_forward);
  job.config.parallel.accumulate_unsharded = auto_bool(choice.accumulate_unsharded);
  return job;
}

std::string describe(const ActivationCheckpointing& checkpointing, int64_t num_layers) {
  const std::string mode = name_of(config_names::kMode, checkpointing.mode);
  if (checkpointing.mode != Mode::kBlock) return mode;
  const double blocks = std::floor(static_cast<double>(num_layers) * checkpointing.ratio + 0.5);
  return fmt::format("{} with ratio {:.3g}, {} of {} blocks", mode, checkpointing.ratio, blocks, num_layers);
}

std::string describe_choice(const Job& job) {
  const ShardingOptions sharding = job.sharding();
  return fmt::format("{}{}{}", describe(job.config.activation_checkpointing, job.config.model.num_layers),
                     sharding.reshard_after_forward ? ", weights gathered again in backward" : "",
                     sharding.accumulate_unsharded ? ", gradients reduced once per step" : "");
}

}  // namespace octavo
