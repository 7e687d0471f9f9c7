#include "app/train/config_changes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "app/config/config_keys.h"
#include "app/config/config_values.h"
#include "core/error.h"
#include "model/schedule.h"

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

bool rate_jumps(const Config& before, const Config& now, int64_t step) {
  constexpr double kRounding = 1e-9;
  const double was = learning_rate(before.optimizer, step, before.training.steps);
  const double would_be = learning_rate(now.optimizer, step, now.training.steps);
  return std::abs(was - would_be) > kRounding * std::max(was, would_be);
}

}  // namespace octavo
