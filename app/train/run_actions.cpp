#include "app/train/run_actions.h"

#include <algorithm>
#include <functional>

#include "app/process/events.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

RunActions::RunActions(const RunParts& parts)
    : config_(parts.config),
      runtime_(parts.runtime),
      memory_checkpoints_(parts.memory_checkpoints),
      run_(parts.run),
      guard_(parts.guard),
      comparison_(parts.comparison),
      log_(parts.log),
      goodput_(parts.goodput),
      loader_state_(run_.start().loader_state) {}

std::optional<int64_t> RunActions::perform(const Actions& actions, const Facts& facts, int64_t step) {
  say(actions.notice, facts, step);
  if (facts.wishes.save) run_.checkpoints().restart_clock();
  save(actions.save, step);
  switch (actions.next) {
    case Next::kContinue:
      break;
    case Next::kFp8Again:
    case Next::kCompare: {
      const auto begin = std::chrono::steady_clock::now();
      actions.next == Next::kCompare ? comparison_.begin(progress_after(step)) : comparison_.return_to_fp8(step);
      account(Goodput::kChecks, begin);
      break;
    }
    case Next::kToCheckpoint:
    case Next::kToComparison:
      roll_back(actions.next, facts.wishes.spike);
      step = run_.start().step;
      break;
    case Next::kGiveUp:
      give_up(step);
    case Next::kStop:
    case Next::kDone:
      end_run();
      return std::nullopt;
  }
  if (actions.save != Save::kNone || accounted_s_ > 0) run_.results().start();
  return step;
}

void RunActions::say(Notice notice, const Facts& facts, int64_t step) const {
  if (!runtime_.group().is_root()) return;
  switch (notice) {
    case Notice::kNone:
      break;
    case Notice::kNotSaved:
      log_event(EventKind::kWarning, step,
                "step {} is not saved, as the run was to go back from it; it goes on from {}", step,
                run_.checkpoints().last());
      break;
    case Notice::kNoCheckpoint:
      log_event(EventKind::kWarning, facts.wishes.spike, "there is no checkpoint to roll back to from step {}",
                facts.wishes.spike);
      break;
    case Notice::kSavePending:
      log_event(EventKind::kWarning, step,
                "step {}: the checkpoint that is due waits for the one before, which is still being written; larger "
                "intervals between checkpoints avoid this",
                step);
      break;
  }
}

void RunActions::save(Save which, int64_t step) {
  switch (which) {
    case Save::kNone:
    case Save::kLastGood:  // give_up() saves it.
      return;
    case Save::kRefused:
      refuse_final_save(step);
    case Save::kInMemory:
    case Save::kOnDisk:
    case Save::kFinal:
      log_.flush();
      run_.save(progress_after(step), which);
  }
}

// Thrown before what is in memory is given up.
void RunActions::refuse_final_save(int64_t step) {
  run_.checkpoints().complete_pending_save();
  throw AgreedError(
      fmt::format("the checkpoint of step {} is not saved: its replicas differ; it is the final one, and the last "
                  "good checkpoint is {}",
                  step, run_.checkpoints().last()));
}

// The weights are those of the last good step, which is saved unless it was already.
void RunActions::give_up(int64_t step) {
  DiskCheckpoints& checkpoints = run_.checkpoints();
  checkpoints.complete_pending_save();
  if (good_.step > checkpoints.saved_step() && run_.weights_are_finite() && run_.allows_save(good_.step)) {
    log_.flush();
    run_.save(good_, Save::kLastGood);
    checkpoints.complete_pending_save();
  }
  if (runtime_.group().is_root()) write_goodput(true);
  throw AgreedError(
      fmt::format("the loss or the gradient norm of {} is not finite or a spike, more than "
                  "training.max_skipped_steps in a row; the last checkpoint is {}",
                  describe_steps(good_.step + 1, step), checkpoints.last()));
}

void RunActions::roll_back(Next to, int64_t spike) {
  const auto begin = std::chrono::steady_clock::now();
  if (to == Next::kToComparison) {
    comparison_.roll_back();
  } else {
    comparison_.cancel();
    roll_back_to_checkpoint(spike);
  }
  guard_.from_json(run_.start().guard);
  loader_state_ = run_.start().loader_state;
  runtime_.stream().synchronize();
  goodput_.set_back(run_.start().steps_s);
  account(Goodput::kRecovery, begin);
}

void RunActions::roll_back_to_checkpoint(int64_t spike) {
  const std::string last = run_.checkpoints().last();
  rollbacks_ = last == std::exchange(rolled_back_to_, last) ? rollbacks_ + 1 : 1;
  runtime_.group().agree([&] {
    CHECK(rollbacks_ <= std::max<int64_t>(config_.training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks_ - 1, last);
  });
  run_.roll_back(spike);
}

void RunActions::end_run() {
  const auto saving = std::chrono::steady_clock::now();
  run_.checkpoints().finish();
  memory_checkpoints_.free();
  goodput_.add(Goodput::kSaving, seconds_since(saving));
  if (!runtime_.group().is_root()) return;
  write_goodput(true);
  log_.end();
  log_event(EventKind::kNote, 0, goodput_.report());
}

Progress RunActions::progress_after(int64_t step) const {
  return {.step = step,
          .tokens = run_.tokens_seen(step),
          .steps_s = goodput_.steps_seconds(),
          .loader_state = loader_state_,
          .guard = guard_.to_json(),
          .bfloat16_until = run_.start().bfloat16_until};
}

void RunActions::account(Goodput::Use use, std::chrono::steady_clock::time_point begin) {
  const double seconds = seconds_since(begin);
  goodput_.add(use, seconds);
  accounted_s_ += seconds;
}

void RunActions::write_goodput(bool end) {
  if (std::function<void()> writing = goodput_.writing(end)) log_.post(std::move(writing));
}

}  // namespace octavo
