#include "app/train/corruption_watch.h"

#include <set>

#include "app/log/append_file.h"
#include "app/process/events.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

CorruptionWatch::CorruptionWatch(const Config& config, Runtime& runtime, TrainingState& state,
                                 RunCheckpoints& checkpoints)
    : config_(config), runtime_(runtime), checkpoints_(checkpoints) {
  if (!state.hashes.defined()) return;
  std::string place = host_name();
  if (runtime.stream().is_cuda()) place += fmt::format(", GPU {} ({})", runtime.gpu(), gpu_info(runtime.gpu()).uuid);
  check_.emplace(config, state, runtime.group(), place);
}

void CorruptionWatch::say_what_is_checked() const {
  if (!check_ || check_->recomputes()) return;
  log_info(
      "training.check_every compares what ranks hold alike; with training.deterministic it would also compute a "
      "micro-batch twice");
}

bool CorruptionWatch::may_save(int64_t step) {
  if (check_ && !check_->due(step)) take(step, check_->check_state());
  if (copies_differ_ && runtime_.group().is_root())
    log_event(EventKind::kWarning, step, "no checkpoint of step {}: its copies differ", step);
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
  if (runtime_.group().is_root()) log_event(EventKind::kWarning, step, message);
}

std::string CorruptionWatch::exclude(const std::vector<int>& ranks, const std::string& why) {
  ProcessGroup& group = runtime_.group();
  const std::vector<std::string> by_rank = group.all_gather(host_name());
  std::set<std::string> wrong;
  for (const int rank : ranks) wrong.insert(by_rank[static_cast<size_t>(rank)]);
  const std::string names = fmt::format("{}", fmt::join(wrong, ", "));
  if (wrong.size() == std::set(by_rank.begin(), by_rank.end()).size()) {
    return fmt::format("; {} cannot be excluded, as there is no other machine", names);
  }
  // The run ends for what was found, even if the file cannot be written. scripts/launching.sh reads the file.
  const std::string path = config_.checkpoint.dir + "/excluded_hosts";
  std::string failure;
  try {
    std::optional<AppendFile> file;
    if (group.is_root()) file.emplace(path);
    for (const std::string& host : wrong) {
      if (file && !file->write(fmt::format("{} # {}\n", host, why))) failure = file->failure();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  failure = group.broadcast(failure);
  if (!failure.empty()) return fmt::format("; {} could not be excluded: {}", names, failure);
  return fmt::format("; {} is in {} from now on, and excluded from the run", names, path);
}

}  // namespace octavo
