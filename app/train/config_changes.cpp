#include "app/train/config_changes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "app/config/config_keys.h"
#include "app/config/config_values.h"
#include "app/config/stages.h"
#include "core/error.h"

namespace octavo {

std::vector<ConfigChange> config_changes(const Config& before, const Config& now) {
  constexpr std::array kOfResuming = {"checkpoint.resume", "checkpoint.allow_changes"};
  std::vector<ConfigChange> changes;
  for (const ConfigKey& key : config_keys()) {
    if (std::find(kOfResuming.begin(), kOfResuming.end(), key.name) != kOfResuming.end()) continue;
    const auto was = key.write(before), is = key.write(now);
    if (was == is) continue;
    const auto text = [](const auto& value) { return value ? yaml_text(*value) : "none"; };
    changes.push_back({key.name, text(was), text(is)});
  }
  return changes;
}

std::string describe(const std::vector<ConfigChange>& changes) {
  std::string text;
  for (const auto& [key, before, now] : changes) {
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", key, before, now);
  }
  return text;
}

std::vector<ConfigChange> schedule_changes(const Config& before, const Config& now) {
  constexpr std::array kOfTheSchedule = {"training.steps",
                                         "training.global_batch_size",
                                         "training.batch_size_warmup",
                                         "optimizer.lr",
                                         "optimizer.min_lr_ratio",
                                         "optimizer.warmup_steps",
                                         "optimizer.schedule",
                                         "optimizer.decay_steps",
                                         "optimizer.decay",
                                         "stages"};
  std::vector<ConfigChange> changes = config_changes(before, now);
  std::erase_if(changes, [&](const ConfigChange& change) {
    return std::find(kOfTheSchedule.begin(), kOfTheSchedule.end(), change.key) == kOfTheSchedule.end();
  });
  return changes;
}

StepSchedule schedule_of(const Config& config, int64_t step) {
  const Config then = config_of_step(config, step);
  return {.lr = then.learning_rate(step), .batch_size = then.training.batch_schedule().batch_size(step)};
}

bool same(const StepSchedule& a, const StepSchedule& b) {
  constexpr double kRounding = 1e-9;
  return a.batch_size == b.batch_size && std::abs(a.lr - b.lr) <= kRounding * std::max(a.lr, b.lr);
}

std::string describe(const StepSchedule& step) {
  return fmt::format("the learning rate {:.3g} and {} sequences", step.lr, step.batch_size);
}

}  // namespace octavo
