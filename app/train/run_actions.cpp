#include "app/train/run_actions.h"

#include <algorithm>
#include <functional>

#include "app/process/events.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

RunActions::RunActions(const RunParts& parts) : parts_(parts), loader_state_(parts.run.start().loader_state) {}

std::optional<int64_t> RunActions::perform(const Actions& actions, const Facts& facts, int64_t step) {
  say(actions.notice, facts, step);
  if (const std::string lost = cut_short(facts); !lost.empty() && parts_.runtime.group().is_root())
    log_event(EventKind::kWarning, step, "step {}: the signal cuts short {}", step, lost);
  if (facts.requests.save) parts_.run.checkpoints().restart_clock();
  save(actions.save, step);
  switch (actions.next) {
    case Next::kContinue:
      break;
    case Next::kResumeFp8:
    case Next::kCompare: {
      const auto begin = std::chrono::steady_clock::now();
      actions.next == Next::kCompare ? parts_.comparison.begin(progress_after(step))
                                     : parts_.comparison.return_to_fp8(step);
      account(Goodput::kChecks, begin);
      break;
    }
    case Next::kToCheckpoint:
    case Next::kToComparison:
      roll_back(actions.next, facts.requests.spike);
      step = parts_.run.start().step;
      break;
    case Next::kGiveUp:
      give_up(step);
    case Next::kStop:
    case Next::kDone:
      end_run();
      return std::nullopt;
  }
  if (actions.save != Save::kNone || accounted_s_ > 0) parts_.run.results().start();
  return step;
}

void RunActions::say(Notice notice, const Facts& facts, int64_t step) const {
  if (!parts_.runtime.group().is_root()) return;
  switch (notice) {
    case Notice::kNone:
      break;
    case Notice::kNotSaved:
      log_event(EventKind::kWarning, step,
                "step {} is not saved, because the run was about to roll back from it; the next start resumes {}", step,
                parts_.run.checkpoints().last());
      break;
    case Notice::kNoCheckpoint:
      log_event(EventKind::kWarning, facts.requests.spike, "there is no checkpoint to roll back to from step {}",
                facts.requests.spike);
      break;
    case Notice::kSavePostponed:
      log_event(EventKind::kWarning, step, "step {}: the due checkpoint is postponed, because {}", step,
                parts_.run.checkpoints().pending()
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
      parts_.log.flush();
      parts_.run.save(progress_after(step), which);
  }
}

// Throws before the state in memory is given up.
void RunActions::refuse_final_save(int64_t step) {
  parts_.run.checkpoints().complete_pending_save();
  throw AgreedError(
      fmt::format("the checkpoint of step {} is not saved, because its replicas differ; it is the final checkpoint, "
                  "and the last good one is {}",
                  step, parts_.run.checkpoints().last()));
}

// Ends the run with an error. The weights are those of the last good step, which is saved unless a checkpoint of it
// exists.
void RunActions::give_up(int64_t step) {
  DiskCheckpoints& checkpoints = parts_.run.checkpoints();
  checkpoints.complete_pending_save();
  if (good_.step > checkpoints.saved_step() && parts_.run.weights_are_finite() && parts_.run.allows_save(good_.step)) {
    parts_.log.flush();
    parts_.run.save(good_, Save::kLastGood);
    checkpoints.complete_pending_save();
  }
  account_final_save();
  if (parts_.runtime.group().is_root()) write_goodput(true);
  throw AgreedError(
      fmt::format("the loss or the gradient norm of {} is not finite or a spike; training.max_skipped_steps allows {} "
                  "such steps in a row; the last checkpoint is {}",
                  describe_steps(good_.step + 1, step), parts_.config.training.max_skipped_steps, checkpoints.last()));
}

void RunActions::roll_back(Next to, int64_t spike) {
  const auto begin = std::chrono::steady_clock::now();
  if (to == Next::kToComparison) {
    parts_.comparison.roll_back();
  } else {
    parts_.comparison.cancel();
    roll_back_to_checkpoint(spike);
  }
  parts_.step_guard.from_json(parts_.run.start().guard);
  loader_state_ = parts_.run.start().loader_state;
  parts_.runtime.stream().synchronize();
  parts_.goodput.roll_back(parts_.run.start().steps_s);
  account(Goodput::kRecovery, begin);
}

void RunActions::roll_back_to_checkpoint(int64_t spike) {
  const std::string last = parts_.run.checkpoints().last();
  rollbacks_ = last == std::exchange(rolled_back_to_, last) ? rollbacks_ + 1 : 1;
  parts_.runtime.group().agree([&] {
    CHECK(rollbacks_ <= std::max<int64_t>(parts_.config.training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks_ - 1, last);
  });
  parts_.run.roll_back(spike);
}

void RunActions::end_run() {
  parts_.run.checkpoints().finish();
  parts_.memory_checkpoints.free();
  account_final_save();
  if (!parts_.runtime.group().is_root()) return;
  write_goodput(true);
  for (std::string& lost : parts_.log.end()) parts_.lost_lines.push_back(std::move(lost));
  log_event(EventKind::kNote, 0, parts_.goodput.report());
}

void RunActions::account_final_save() {
  parts_.goodput.add(Goodput::kSaving, std::max(seconds_since(last_result_) - take_accounted(), 0.0));
}

Progress RunActions::progress_after(int64_t step) const {
  return {.step = step,
          .tokens = parts_.run.tokens_seen(step),
          .steps_s = parts_.goodput.steps_seconds(),
          .loader_state = loader_state_,
          .guard = parts_.step_guard.to_json(),
          .bfloat16_until = parts_.run.start().bfloat16_until,
          .rolled_back = parts_.run.start().rolled_back};
}

void RunActions::account(Goodput::Use use, std::chrono::steady_clock::time_point begin) {
  const double seconds = seconds_since(begin);
  parts_.goodput.add(use, seconds);
  accounted_s_ += seconds;
}

void RunActions::write_goodput(bool end) {
  if (std::function<void()> writing = parts_.goodput.writing(end)) parts_.log.post(std::move(writing));
}

}  // namespace octavo
