// Observer that runs the check for silent corruption (app/observers/corruption_check.h) every
// training.corruption_check_every steps, acts on differences as training.on_corruption says, and refuses to save a
// state whose replicas are known to differ. Does nothing if training.corruption_check_every is 0.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/observers/corruption_check.h"
#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "app/records/append_file.h"
#include "app/run/disk_checkpoints.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

namespace {

// If something differs and the run must end, on_result() and allows_save() throw an AgreedError that names the rank,
// its machine and GPU, what differs, and the last checkpoint.
class CorruptionWatch : public StepObserver {
 public:
  explicit CorruptionWatch(const ObserverContext& context) : context_(context) {
    on_new_state();
    if (!check_ || check_->recomputes() || context.config.stage.number > 1 || !context.runtime.group().is_root())
      return;
    log_info(
        "training.corruption_check_every compares the replicas of the state; with training.deterministic it would also "
        "compare a micro-batch that is computed twice");
  }

  void before_step(const TrainingStep& step) override {
    if (due(step.number)) check_->begin_step(step);
  }

  void after_step(int64_t step) override {
    if (due(step)) check_->end_step();
  }

  void on_result(Step& step) override {
    if (due(step.number)) take(step.number, check_->finish());
  }

  // Compares the replicas unless on_result() has just done so. Logs why saving is refused.
  bool allows_save(int64_t step) override {
    if (check_ && !check_->due(step)) take(step, check_->check_state());
    if (replicas_differ_ && context_.runtime.group().is_root()) {
      log_event(EventKind::kWarning, step, "the checkpoint of step {} is not saved, because its replicas differ", step);
    }
    return !replicas_differ_;
  }

  void on_new_state() override {
    check_.reset();
    replicas_differ_ = false;
    if (!context_.state.hashes.defined()) return;
    Runtime& runtime = context_.runtime;
    std::string place = host_name();
    if (runtime.stream().is_cuda()) place += fmt::format(", GPU {} ({})", runtime.gpu(), gpu_info(runtime.gpu()).uuid);
    check_.emplace(context_.config, context_.state, runtime.group(), place);
  }

 private:
  bool due(int64_t step) const { return check_ && check_->due(step); }

  void take(int64_t step, const CorruptionVerdict& verdict) {
    replicas_differ_ = verdict.replicas_differ;
    if (verdict.ranks.empty()) return;
    const bool ends = context_.config.training.on_corruption != OnCorruption::kWarn;
    // Completes the pending save, so that the checkpoint that the message names exists.
    if (ends) context_.checkpoints.complete_pending_save();
    std::string message =
        fmt::format("step {}: {}; the last checkpoint is {}", step, verdict.message, context_.checkpoints.last());
    if (context_.config.training.on_corruption == OnCorruption::kExclude) message += exclude(verdict.ranks, message);
    if (ends) context_.runtime.group().agree([&] { throw Error(message); });
    if (context_.runtime.group().is_root()) log_event(EventKind::kWarning, step, message);
  }

  // Writes the machines of `ranks` with the reason to the file that launchers read. Returns a sentence about the
  // result.
  std::string exclude(const std::vector<int>& ranks, const std::string& why) {
    ProcessGroup& group = context_.runtime.group();
    const std::vector<std::string> by_rank = group.all_gather(host_name());
    std::set<std::string> wrong;
    for (const int rank : ranks) wrong.insert(by_rank[static_cast<size_t>(rank)]);
    const std::string names = fmt::format("{}", fmt::join(wrong, ", "));
    if (wrong.size() == std::set(by_rank.begin(), by_rank.end()).size()) {
      return fmt::format("; {} cannot be excluded, because there is no other machine", names);
    }
    // The run ends with the message about the corruption even if the file cannot be written. scripts/launching.sh reads
    // it.
    const std::string path = context_.config.checkpoint.dir + "/excluded_hosts";
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
    return fmt::format("; {} was added to {}, and is excluded from restarts", names, path);
  }

  const ObserverContext context_;
  std::optional<CorruptionCheck> check_;
  bool replicas_differ_ = false;  // Result of the last comparison of the replicas.
};

}  // namespace

std::unique_ptr<StepObserver> make_corruption_watch(const ObserverContext& context) {
  return std::make_unique<CorruptionWatch>(context);
}

}  // namespace octavo
