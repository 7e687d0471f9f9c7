#include "app/train/run_actions.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "app/config/stages.h"
#include "app/process/events.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

RunActions::RunActions(Session& session, Training& training, PrecisionComparison& comparison)
    : session_(session),
      training_(training),
      comparison_(comparison),
      group_(session.runtime.group()),
      loader_state_(training.start().loader_state),
      good_(training.start()) {}

std::optional<Outcome> RunActions::perform(const Actions& actions, const Facts& facts, int64_t step,
                                           const StopSignals& signals) {
  say(actions.notice, facts, step);
  if (const std::string lost = cut_short(facts); !lost.empty() && group_.is_root())
    log_event(EventKind::kWarning, step, "step {}: the signal cuts short {}", step, lost);
  if (facts.requests.save) session_.checkpoints.restart_clock();
  save(actions.save, step);
  switch (actions.next) {
    case Next::kContinue:
      break;
    case Next::kCompare: {
      const auto begin = std::chrono::steady_clock::now();
      comparison_.begin(progress_after(step));
      session_.account(Goodput::kChecks, begin);
      break;
    }
    case Next::kResumeFp8:
      return return_to_fp8(step);
    case Next::kToCheckpoint:
      return roll_back_to_checkpoint(facts.requests.spike);
    case Next::kToComparison:
      return fall_back_to_bfloat16();
    case Next::kGiveUp:
      give_up(step);
    case Next::kStop:
    case Next::kDone:
      return end_job(actions.next == Next::kStop, step, signals);
  }
  if (actions.save != Save::kNone || session_.has_accounted()) training_.results().start();
  return std::nullopt;
}

void RunActions::say(Notice notice, const Facts& facts, int64_t step) const {
  if (!group_.is_root()) return;
  switch (notice) {
    case Notice::kNone:
      break;
    case Notice::kNotSaved:
      log_event(EventKind::kWarning, step,
                "step {} is not saved, because the run was about to roll back from it; the next start resumes {}", step,
                session_.checkpoints.last());
      break;
    case Notice::kNoCheckpoint:
      log_event(EventKind::kWarning, facts.requests.spike, "there is no checkpoint to roll back to from step {}",
                facts.requests.spike);
      break;
    case Notice::kSavePostponed:
      log_event(EventKind::kWarning, step, "step {}: the due checkpoint is postponed, because {}", step,
                session_.checkpoints.pending()
                    ? "the previous one is still being written; larger intervals between checkpoints avoid this"
                    : "the memory for it is still being prepared, or old checkpoints are still being removed");
      break;
  }
}

void RunActions::save(Save which, int64_t step) {
  switch (which) {
    case Save::kNone:
    case Save::kLastGood:  // Not saved here, but in give_up().
      return;
    case Save::kRefused:
      refuse_final_save(step);
    case Save::kInMemory:
    case Save::kOnDisk:
    case Save::kFinal:
      training_.log().flush();
      if (session_.checkpoint_command) session_.checkpoint_command->set_loss(step, last_loss_);
      training_.save(progress_after(step), which);
  }
}

// Throws before end_job() frees the checkpoint in memory, which a restart may resume.
void RunActions::refuse_final_save(int64_t step) {
  session_.checkpoints.complete_pending_save();
  throw ErrorOfAllRanks(
      fmt::format("the checkpoint of step {} is not saved, because its replicas differ; it is the final checkpoint, "
                  "and the last good one is {}",
                  step, session_.checkpoints.last()));
}

// Ends the run with an error. The skipped steps changed nothing, so the current state is that of the last good step.
// Saves this state unless a checkpoint of it exists.
void RunActions::give_up(int64_t step) {
  DiskCheckpoints& checkpoints = session_.checkpoints;
  checkpoints.complete_pending_save();
  if (good_.step > checkpoints.saved_step() && training_.weights_are_finite() && training_.allows_save(good_.step)) {
    training_.log().flush();
    training_.save(good_, Save::kLastGood);
    checkpoints.complete_pending_save();
  }
  account_final_save();
  if (group_.is_root()) write_goodput(true);
  throw ErrorOfAllRanks(fmt::format(
      "the loss or the gradient norm of {} is not finite or a spike; training.max_skipped_steps allows {} "
      "such steps in a row; the last checkpoint is {}",
      describe_steps(good_.step + 1, step), training_.config().training.max_skipped_steps, checkpoints.last()));
}

// Rolls back to the last checkpoint. The samples of the spike are skipped from then on, also after the run is resumed.
Outcome RunActions::roll_back_to_checkpoint(int64_t spike) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Checkpoint> checkpoint = session_.open_last();
  const Progress& now = training_.start();
  Start start;
  group_.throw_file_errors_on_all_ranks("rolling back", [&] {
    CHECK(checkpoint.has_value(), "there is no checkpoint to roll back to from step {}", spike);
    const std::string path = checkpoint->path().string();
    const std::optional<SampleRange> samples = training_.samples_of(spike);
    CHECK(samples.has_value(), "the samples of step {} are unknown", spike);
    CHECK(stage_of_step(session_.config, checkpoint->step() + 1) == stage_of_step(session_.config, now.step + 1),
          "the newest undamaged checkpoint, {}, belongs to an earlier stage, so step {} cannot be rolled back to it",
          path, spike);
    start.progress = progress_of(*checkpoint);
    // Number of earlier rollbacks to this checkpoint.
    const auto rollbacks = std::ssize(now.rolled_back) - std::ssize(start.progress.rolled_back);
    CHECK(rollbacks < std::max<int64_t>(training_.config().training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks, path);
    start.progress.rolled_back = now.rolled_back;
    start.progress.rolled_back.push_back(*samples);
    start.progress.began_from = now.began_from;
    if (group_.is_root())
      log_event(EventKind::kRollback, start.progress.step,
                "rolled back to {} after step {}; samples {} to {} are skipped", path, start.progress.step,
                samples->begin, samples->end - 1);
    start.values = std::move(*checkpoint);
  });
  session_.account(Goodput::kRecovery, begin);
  return {.ended = Ended::kRollback, .next = std::move(start)};
}

Outcome RunActions::fall_back_to_bfloat16() {
  const Progress progress = comparison_.fallback();
  if (group_.is_root())
    log_event(EventKind::kFallback, progress.step,
              "rolled back to step {}; the run continues in bfloat16 until step {}", progress.step,
              progress.bfloat16_until);
  return {.ended = Ended::kRollback, .next = Start{.progress = progress, .values = &training_.snapshot()}};
}

Outcome RunActions::return_to_fp8(int64_t step) {
  const PrecisionConfig& precision = training_.config().precision;
  if (group_.is_root())
    log_event(EventKind::kNote, step + 1, "the run continues in {} from step {}",
              is_fp8(precision.linear) ? precision_name(precision) : "FP8", step + 1);
  const auto begin = std::chrono::steady_clock::now();
  Start start{.progress = progress_after(step), .values = &training_.take_snapshot()};
  session_.account(Goodput::kChecks, begin);
  return {.ended = Ended::kFallback, .next = std::move(start)};
}

Outcome RunActions::end_job(bool stopped, int64_t step, const StopSignals& signals) {
  const int64_t stage = training_.config().stage.number;
  const bool is_last = stage == std::ssize(session_.config.stages);
  session_.checkpoints.finish();
  session_.memory_checkpoints.free();
  account_final_save();
  if (stopped || is_last) await_command(signals);
  if (group_.is_root()) {
    write_goodput(true);
    for (std::string& lost : training_.log().end()) session_.lost_lines.push_back(std::move(lost));
    log_event(EventKind::kNote, 0, session_.goodput->report());
  }
  if (stopped) return {.ended = Ended::kStopped};
  if (is_last) return {.ended = Ended::kDone};
  group_.throw_on_all_ranks([&] {
    CHECK(session_.checkpoints.saved_step() == step,
          "the state at the end of stage {} could not be saved, so that the next stage has nothing to resume from",
          stage);
  });
  std::optional<Checkpoint> last = session_.open_last();
  Start start;
  group_.throw_file_errors_on_all_ranks("beginning the next stage", [&] {
    CHECK(last.has_value(), "there is no undamaged checkpoint with which stage {} can begin", stage + 1);
    start.progress = progress_of(*last);
    start.values = std::move(*last);
  });
  return {.ended = Ended::kStage, .next = std::move(start)};
}

// Waits for the commands of the last checkpoints, and logs what they print in rows that repeat the last step. A run
// that a signal stops does not wait.
void RunActions::await_command(const StopSignals& signals) {
  if (session_.config.checkpoint.command.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  while (group_.all_reduce_max(session_.poll_command() ? 1 : 0) != 0) {
    if (group_.all_reduce_max(signals.requested() ? 1 : 0) != 0) {
      if (session_.checkpoint_command) session_.checkpoint_command->end("a signal stops the run");
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  training_.log().report_again([&](MetricRow& row) { return session_.add_evaluation(row); });
  session_.account(Goodput::kValidation, begin);
}

void RunActions::account_final_save() {
  session_.goodput->add(Goodput::kSaving, std::max(seconds_since(last_result_) - session_.take_accounted(), 0.0));
}

// The members that are not set here keep their values during a job.
Progress RunActions::progress_after(int64_t step) const {
  Progress progress = training_.start();
  progress.step = step;
  progress.tokens = training_.tokens_seen(step);
  progress.steps_s = session_.goodput->steps_seconds();
  progress.loader_state = loader_state_;
  progress.guard = training_.step_guard().to_json();
  return progress;
}

void RunActions::write_goodput(bool end) {
  if (std::function<void()> writing = session_.goodput->writing(end)) training_.log().post(std::move(writing));
}

}  // namespace octavo
