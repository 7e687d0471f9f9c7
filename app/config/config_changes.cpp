#include "app/config/config_changes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>
#include <set>

#include "app/config/config_keys.h"
#include "app/config/config_names.h"
#include "app/config/stages.h"
#include "core/error.h"

namespace octavo {

namespace {

using config_names::kAllowedChange;

template <typename Predicate>
std::vector<ConfigChange> changes_where(const Config& before, const Config& now, Predicate matters) {
  std::vector<ConfigChange> changes;
  for (const ConfigKey& key : config_keys()) {
    if (!matters(key)) continue;
    const auto was = key.write(before), is = key.write(now);
    if (was == is) continue;
    const auto text = [](const auto& value) { return value ? yaml_text(*value) : "none"; };
    changes.push_back({key.name, key.key_class, text(was), text(is)});
  }
  return changes;
}

StepSchedule schedule_in(const std::vector<StageConfig>& stages, int64_t step) {
  const StageConfig& then = stages[stage_of_step(stages.front(), step)];
  return {.lr = then.learning_rate(step), .batch_size = then.training.batch_schedule().batch_size(step)};
}

// Names what differs between the schedules of a step, such as "step 5 has 8 instead of 4 sequences". Returns an empty
// text if nothing does.
std::string step_difference(int64_t step, const StepSchedule& was, const StepSchedule& is) {
  constexpr double kRounding = 1e-9;
  std::vector<std::string> parts;
  if (std::abs(was.lr - is.lr) > kRounding * std::max(was.lr, is.lr))
    parts.push_back(fmt::format("the learning rate {:.3g} instead of {:.3g}", is.lr, was.lr));
  if (was.batch_size != is.batch_size)
    parts.push_back(fmt::format("{} instead of {} sequences", is.batch_size, was.batch_size));
  return parts.empty() ? "" : fmt::format("step {} has {}", step, fmt::join(parts, " and "));
}

// Describes the first remaining step that both configs have and at which their schedules differ. If no steps remain,
// compares the last step that both have. Returns an empty text if there is no difference. Checks at most 100,000 steps,
// evenly spaced.
std::string schedule_difference(const Config& before, const Config& now, int64_t steps_done) {
  constexpr int64_t kMaxComparedSteps = 100'000;
  const std::vector<StageConfig> stages_before = stage_configs(before), stages_now = stage_configs(now);
  const int64_t last = std::min(before.training.steps, now.training.steps);
  const int64_t first = std::min(steps_done + 1, last);
  const int64_t stride = (last - first) / kMaxComparedSteps + 1;
  for (int64_t step = first;; step = std::min(step + stride, last)) {
    const std::string difference =
        step_difference(step, schedule_in(stages_before, step), schedule_in(stages_now, step));
    if (!difference.empty() || step == last) return difference;
  }
}

// Returns the reason why a stage, with the configs `was` and `is`, would begin at another sample, or an empty text if
// it would not.
std::string moved_stage(const StageConfig& was, const StageConfig& is) {
  if (was.stage.number == 0 || is.stage.number == 0 || was.stage.steps_before != is.stage.steps_before) return "";
  if (was.data.origin.sample == is.data.origin.sample) return "";
  return fmt::format(
      "this config would change stages that are done: stage {} would begin at sample {} instead of {}; give other "
      "batch sizes or another data.skip only under `stages`, in the items of later stages",
      is.stage.number, is.data.origin.sample, was.data.origin.sample);
}

}  // namespace

std::vector<ConfigChange> config_changes(const Config& before, const Config& now) {
  constexpr std::array kIgnored = {"checkpoint.resume", "checkpoint.allow_changes", "plan.gpus", "plan.machine"};
  return changes_where(before, now,
                       [&](const ConfigKey& key) { return std::ranges::find(kIgnored, key.name) == kIgnored.end(); });
}

std::string describe(const std::vector<ConfigChange>& changes) {
  const auto text = [](const ConfigChange& change) {
    return fmt::format("{} {} -> {}", change.key, change.before, change.now);
  };
  return fmt::format("{}", fmt::join(changes | std::views::transform(text), ", "));
}

std::vector<ConfigChange> changes_of_run(const Config& before, const Config& now) {
  return changes_where(before, now, [](const ConfigKey& key) { return key.computes(); });
}

std::string refusal_to_resume(const Config& before, const Config& now, int64_t steps_done) {
  const CheckpointConfig& allowed = now.checkpoint;
  const int64_t next = std::min(steps_done + 1, before.training.steps);
  const StageConfig was = config_of_step(before, next), is = config_of_step(now, next);
  if (std::string moved = moved_stage(was, is); !moved.empty()) return moved;
  std::vector<ConfigChange> refused = changes_where(was, is, [&](const ConfigKey& key) {
    return key.computes() && key.compared == Compared::kByValue && !allowed.allows(key.key_class);
  });
  std::string difference;
  if (!allowed.allows(KeyClass::kSchedule)) difference = schedule_difference(before, now, steps_done);
  if (!difference.empty()) {
    std::vector<ConfigChange> schedule =
        changes_where(before, now, [](const ConfigKey& key) { return key.key_class == KeyClass::kSchedule; });
    std::ranges::move(schedule, std::back_inserter(refused));
    difference = fmt::format(" ({})", difference);
  }
  if (refused.empty()) return "";
  std::set<KeyClass> needed(allowed.allow_changes.begin(), allowed.allow_changes.end());
  for (const ConfigChange& change : refused) needed.insert(change.key_class);
  std::string names;
  for (const Choice<KeyClass>& one : kAllowedChange) {
    if (needed.erase(one.value) > 0) names += (names.empty() ? "" : ",") + std::string(one.name);
  }
  // No class of checkpoint.allow_changes permits another optimizer.type, because its states would not fit.
  const bool other_states =
      std::ranges::any_of(refused, [](const ConfigChange& change) { return change.key == "optimizer.type"; });
  const std::string remedy =
      needed.empty() && !other_states ? fmt::format(", checkpoint.allow_changes=[{}]", names) : "";
  return fmt::format(
      "this config would change what the run computes: {}{}; expected the values of the checkpoint{}, or another "
      "logging.dir and checkpoint.dir for a new run",
      describe(refused), difference, remedy);
}

StepSchedule schedule_of(const Config& config, int64_t step) { return schedule_in(stage_configs(config), step); }

}  // namespace octavo
