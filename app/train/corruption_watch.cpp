#include "app/train/corruption_watch.h"

#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/log.h"

namespace octavo {

namespace {

// In checkpoint.dir: a machine a line and, behind a #, why. Read by scripts/launching.sh.
constexpr const char* kExcludedHostsName = "excluded_hosts";

void exclude_hosts(const std::string& checkpoint_dir, const std::set<std::string>& hosts, const std::string& why) {
  const std::filesystem::path path = std::filesystem::path(checkpoint_dir) / kExcludedHostsName;
  std::string lines = std::filesystem::exists(path) ? read_input_file(path.string()) : "";
  for (const std::string& host : hosts) lines += fmt::format("{} # {}\n", host, why);
  write_output_file(path.string(), lines);
}

}  // namespace

CorruptionWatch::CorruptionWatch(const Config& config, Runtime& runtime, TrainingState& state,
                                 RunCheckpoints& checkpoints)
    : config_(config), runtime_(runtime), checkpoints_(checkpoints) {
  if (!state.check) return;
  CorruptionCheck::Identity identity{.place = host_name(), .processor = runtime.processor()};
  if (runtime.stream().is_cuda()) {
    identity.place += fmt::format(", GPU {} ({})", runtime.gpu(), gpu_info(runtime.gpu()).uuid);
  }
  check_.emplace(config, state, runtime.group(), identity);
}

void CorruptionWatch::say_what_is_checked() const {
  if (!check_ || check_->recomputes()) return;
  log_info(
      "training.check_every compares what ranks hold alike; with training.deterministic it would also compute a "
      "micro-batch twice");
}

void CorruptionWatch::begin_step(const TrainingStep& step, const Batch& batch) {
  if (due(step.number)) check_->begin_step(step, batch);
}

void CorruptionWatch::end_step(int64_t step) {
  if (due(step)) check_->end_step();
}

void CorruptionWatch::finish_step(int64_t step) {
  if (due(step)) take(step, check_->finish());
}

bool CorruptionWatch::may_save(int64_t step) {
  if (check_ && !check_->due(step)) take(step, check_->check_state());
  if (copies_differ_ && runtime_.group().is_root()) log_warning("no checkpoint of step {}: its copies differ", step);
  return !copies_differ_;
}

void CorruptionWatch::take(int64_t step, const CorruptionVerdict& verdict) {
  copies_differ_ = verdict.copies_differ;
  if (verdict.ranks.empty()) return;
  const bool ends = config_.training.on_corruption != OnCorruption::kWarn;
  if (ends) checkpoints_.complete_pending_save();  // so that the one that is named is there
  std::string message =
      fmt::format("step {}: {}; the last checkpoint is {}", step, verdict.message, checkpoints_.last());
  if (config_.training.on_corruption == OnCorruption::kExclude) message += exclude(verdict.ranks, message);
  if (ends) runtime_.group().agree([&] { throw Error(message); });
  if (runtime_.group().is_root()) log_warning("{}", message);
}

// What came of it, for the message.
std::string CorruptionWatch::exclude(const std::vector<int>& ranks, const std::string& why) {
  const std::vector<std::string> by_rank = runtime_.group().all_gather(host_name());
  std::set<std::string> wrong;
  for (const int rank : ranks) wrong.insert(by_rank[static_cast<size_t>(rank)]);
  const std::string names = fmt::format("{}", fmt::join(wrong, ", "));
  if (wrong.size() == std::set(by_rank.begin(), by_rank.end()).size()) {
    return fmt::format("; {} cannot be excluded, as there is no other machine", names);
  }
  // Whether that can be written or not, the run ends for what was found.
  std::string failure;
  try {
    if (runtime_.group().is_root()) exclude_hosts(config_.checkpoint.dir, wrong, why);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  failure = runtime_.group().broadcast(failure);
  if (!failure.empty()) return fmt::format("; {} could not be excluded: {}", names, failure);
  return fmt::format("; {} is in {}/{} from now on, and excluded from the run", names, config_.checkpoint.dir,
                     kExcludedHostsName);
}

}  // namespace octavo
