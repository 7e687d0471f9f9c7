#include "app/train/trainer.h"

#include <utility>

#include "core/log.h"

namespace octavo {

Trainer::Trainer(const Job& job, RunContext& context, std::optional<Checkpoint> resumed)
    : config_(job.stated),
      runtime_(context.runtime),
      timer_(context.timer),
      memory_checkpoints_(context.memory_checkpoints),
      run_(job, runtime_, timer_, context.checkpoints, context.memory_checkpoints, std::move(resumed),
           [&](Arena& arena) {
             if (!config_.data.validation.empty()) validator_.emplace(config_, runtime_, arena);
           }),
      step_guard_(config_.training, config_.logging.every),
      comparison_(config_, runtime_, run_),
      goodput_(context.goodput),
      lost_lines_(context.lost_lines),
      first_of_process_(!goodput_) {
  step_guard_.from_json(run_.start().guard);
  if (is_finished()) return;
  const bool continues = config_.checkpoint.resume != "never";
  const bool is_root = runtime_.group().is_root();
  RunFolder* const folder = context.folder;
  runtime_.group().agree_on_files("opening the log", [&] {
    if (folder != nullptr) folder->lock();
    if (folder != nullptr && first_of_process_) folder->claim(resumed_from());
    log_.emplace(config_, runtime_, is_root, continues ? std::optional(run_.start().step) : std::nullopt,
                 context.console);
  });
  if (folder != nullptr && first_of_process_) folder->open();
  context.checkpoints.set_other_runs_aside();
  context.memory_checkpoints.begin();
  if (!goodput_) goodput_.emplace(config_.logging.dir, continues && is_root, run_.start().steps_s);
  timer_.mark("memory");
}

// Returns the checkpoint directory that the run starts from, or an empty path. For a checkpoint in memory this is the
// directory of the run's checkpoints on disk.
std::filesystem::path Trainer::resumed_from() const {
  if (const auto last = run_.checkpoints().last_path()) return last->parent_path();
  return run_.start().step > 0 ? config_.checkpoint.dir : "";
}

RunOutcome Trainer::run(StopSignals& signals) {
  if (is_finished()) {
    memory_checkpoints_.free();
    if (runtime_.group().is_root()) {
      log_info(
          "nothing to do: step {} of {} is reached, and the run is finished; a larger training.steps trains further, "
          "with checkpoint.allow_changes=[schedule] if the schedule depends on it",
          run_.start().step, config_.training.steps);
    }
    return RunOutcome::kDone;
  }
  try {
    begin();
    return TrainingLoop({.config = config_,
                         .runtime = runtime_,
                         .memory_checkpoints = memory_checkpoints_,
                         .run = run_,
                         .validator = validator_ ? &*validator_ : nullptr,
                         .step_guard = step_guard_,
                         .comparison = comparison_,
                         .log = *log_,
                         .goodput = *goodput_,
                         .lost_lines = lost_lines_})
        .run(signals);
  } catch (const std::exception& error) {
    if (runtime_.group().shares(error)) run_.checkpoints().complete_pending_save();
    throw;
  }
}

void Trainer::log_start() {
  if (!runtime_.group().is_root()) return;
  const StageSpan& stage = config_.stage;
  if (stage.number > 0)
    log_info("stage {} of {}: steps {} to {}, {} sequences of {} tokens per step", stage.number, config_.stages.size(),
             stage.steps_before + 1, config_.training.steps, config_.training.global_batch_size, config_.data.seq_len);
  if (first_of_process_) log_info("started in {}", timer_.report());
}

void Trainer::begin() {
  goodput_->add(Goodput::kStart, first_of_process_ ? seconds_since_launch() : seconds_since(begin_));
  const auto tuning = std::chrono::steady_clock::now();
  runtime_.tune([&] {
    comparison_.warm_up();
    run_.warm_up();
  });
  if (runtime_.stream().is_cuda()) timer_.mark("plans and tuning");
  goodput_->add(Goodput::kTuning, seconds_since(tuning));
  log_start();
  run_.results().start();
}

}  // namespace octavo
