#include "app/train/corruption_watch.h"

#include "core/error.h"
#include "core/log.h"

namespace octavo {

CorruptionWatch::CorruptionWatch(const Config& config, Runtime& runtime, TrainingState& state,
                                 RunCheckpoints& checkpoints)
    : config_(config), runtime_(runtime), checkpoints_(checkpoints) {
  if (!state.check) return;
  CorruptionCheck::Identity identity{.place = host_name(), .processor = runtime.processor()};
  if (runtime.stream().is_cuda()) {
    identity.place += fmt::format(", GPU {} ({})", runtime.gpu(), gpu_info(runtime.gpu()).uuid);
  }
  check_.emplace(config, state, training_rank(runtime), runtime.group(), identity);
  if (check_->recomputes() || !runtime.group().is_root()) return;
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
  const bool ends = config_.training.on_corruption == OnCorruption::kStop;
  if (ends) checkpoints_.complete_pending_save();  // so that the one that is named is there
  const std::string message =
      fmt::format("step {}: {}; the last checkpoint is {}", step, verdict.message, checkpoints_.last());
  if (ends) runtime_.group().agree([&] { throw Error(message); });
  if (runtime_.group().is_root()) log_warning("{}", message);
}

}  // namespace octavo
