#include "app/memory/memory_choice.h"

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

}  // namespace

std::vector<MemoryChoice> memory_choices(const Config& config, bool sharded) {
  const ActivationCheckpointing& given = config.activation_checkpointing;
  const Reshard reshard = config.parallel.reshard_after_forward;
  std::vector<bool> reshards = {false};
  if (sharded && reshard == Reshard::kAuto) reshards = {false, true};
  if (reshard == Reshard::kTrue) reshards = {true};
  std::vector<MemoryChoice> choices;
  const auto add = [&](const ActivationCheckpointing& checkpointing) {
    for (const bool reshards_now : reshards) choices.push_back({checkpointing, reshards_now});
  };
  if (given.mode != Mode::kAuto) {
    add(given);
    return choices;
  }
  add({.mode = Mode::kNone});
  add({.mode = Mode::kSelective});
  const int64_t layers = config.model.num_layers;
  for (int64_t blocks = 2; blocks < layers; ++blocks) {
    const double ratio = static_cast<double>(blocks) / static_cast<double>(layers);
    choices.push_back({{.mode = Mode::kBlock, .ratio = ratio}, reshards.back()});
  }
  choices.push_back({{.mode = Mode::kFull}, reshards.back()});
  return choices;
}

size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits) {
  const auto blocks = std::find_if(choices.begin(), choices.end(), recomputes_blocks);
  auto found = std::find_if(choices.begin(), blocks, fits);
  if (found == blocks) {
    found = std::partition_point(blocks, choices.end(), [&](const MemoryChoice& choice) { return !fits(choice); });
  }
  return static_cast<size_t>(found - choices.begin());
}

std::string describe(const MemoryChoice& choice, int64_t num_layers) {
  const ActivationCheckpointing& c = choice.checkpointing;
  std::string text = name_of(config_names::kMode, c.mode);
  if (c.mode == Mode::kBlock) {
    const double blocks = std::floor(static_cast<double>(num_layers) * c.ratio + 0.5);
    text += fmt::format(" with ratio {:.3g}, {} of {} blocks", c.ratio, blocks, num_layers);
  }
  if (choice.reshard_after_forward) text += ", weights gathered again in backward";
  return text;
}

}  // namespace octavo
