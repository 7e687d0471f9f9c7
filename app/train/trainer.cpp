#include "app/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "app/process/events.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string describe_bad_step(const Step& step) {
  const double loss = unsigned_nan(step.loss());
  const char* outcome = step.skipped ? "; it changes nothing" : "";
  const std::string samples = fmt::format("samples {} to {}{}", step.samples.begin, step.samples.end - 1, outcome);
  if (!std::isfinite(loss) || !std::isfinite(step.grad_norm)) {
    return fmt::format("step {}: the loss is {:.4g} and the gradient norm {:.4g}; {}", step.number, loss,
                       unsigned_nan(step.grad_norm), samples);
  }
  return fmt::format("step {}: the loss of {:.4f} is a spike, {:.1f} standard deviations above those before; {}",
                     step.number, loss, step.judgement.loss_z.value_or(0), samples);
}

// Warns of what is wrong with a step, or stands out.
void warn_of(const Step& step) {
  const Judgement& judgement = step.judgement;
  if (judgement.skipped || judgement.spike) {
    log_event(step.skipped ? EventKind::kSkip : EventKind::kWarning, step.number, describe_bad_step(step));
  }
  if (judgement.grad_norm_z) {
    log_event(EventKind::kWarning, step.number,
              "step {}: the gradient norm of {:.3f} is a spike, {:.1f} standard deviations above those before",
              step.number, step.grad_norm, *judgement.grad_norm_z);
  }
  if (judgement.warns_of_slowdown) {
    log_event(EventKind::kWarning, step.number, "step {}: it took {:.0f} ms, {:.1f} times as long as those before",
              step.number, step.step_ms, *judgement.slowdown);
  }
}

}  // namespace

Trainer::Trainer(const Config& config, RunContext& context, std::optional<Checkpoint> resumed)
    : config_(config),
      runtime_(context.runtime),
      timer_(context.timer),
      memory_checkpoints_(context.memory_checkpoints),
      run_(config, runtime_, timer_, context.checkpoints, context.memory_checkpoints, std::move(resumed),
           [&](Arena& arena) {
             if (!config.data.validation.empty()) validator_.emplace(config, runtime_, arena);
           }),
      guard_(config.training, config.logging.every),
      comparison_(config_, runtime_, run_),
      goodput_(context.goodput),
      first_of_process_(!goodput_) {
  guard_.from_json(run_.start().guard);
  loader_state_ = run_.start().loader_state;
  if (is_finished()) return;
  const bool continues = config.checkpoint.resume != "never";
  const bool is_root = runtime_.group().is_root();
  RunFolder* const folder = context.folder;
  runtime_.group().agree_on_files("opening the log", [&] {
    if (folder != nullptr) folder->lock();
    if (folder != nullptr && first_of_process_) folder->claim(resumed_from());
    log_.emplace(config_, runtime_, is_root, continues ? std::optional(run_.start().step) : std::nullopt,
                 context.console);
  });
  if (folder != nullptr && first_of_process_) folder->open();
  context.checkpoints.leave_other_runs();
  context.memory_checkpoints.begin();
  if (!goodput_) goodput_.emplace(config.logging.dir, continues && is_root, run_.start().steps_s);
  timer_.mark("memory");
}

// The directory of the checkpoint that the run starts from; empty for none. One in memory was saved there too, or was
// to be.
std::filesystem::path Trainer::resumed_from() const {
  if (const auto last = run_.checkpoints().last_path()) return last->parent_path();
  return run_.start().step > 0 ? config_.checkpoint.dir : "";
}

Trainer::Outcome Trainer::run(StopSignals& signals) {
  if (is_finished()) {
    memory_checkpoints_.free();
    if (runtime_.group().is_root()) {
      log_info(
          "nothing to do: step {} of {} is reached, and the run is finished; a larger training.steps trains further, "
          "with checkpoint.allow_changes=[schedule] if the schedule depends on it",
          run_.start().step, config_.training.steps);
    }
    return Outcome::kDone;
  }
  try {
    return train(signals);
  } catch (const std::exception& error) {
    if (runtime_.group().shares(error)) run_.checkpoints().complete_pending_save();
    throw;
  }
}

void Trainer::log_start() {
  if (!runtime_.group().is_root()) return;
  const StageSpan& stage = config_.stage;
  if (stage.number > 0)
    log_info("stage {} of {}: steps {} to {}, {} sequences of {} tokens a step", stage.number, config_.stages.size(),
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

Trainer::Outcome Trainer::train(StopSignals& signals) {
  begin();
  std::optional<int64_t> done = run_.start().step;
  bool owes_save = false;
  bool stopped = false;
  while (done) {
    const int64_t step = *done + 1;
    const Due due = due_after(step, owes_save);
    queue_step(step, signals);
    // A step that is saved or validated is waited for, so that weights spoiled by a bad step are never saved, and so is
    // the first one, whose line says that the run is under way. Any other is in flight while the next one is queued.
    const bool waits = steps_in_flight_ == 0 || due.any() || is_first(step) || is_watched(step) || agree(signals).any();
    std::optional<Step> newest = finish_steps(waits);
    if (run_.results().pending() > 0) {
      if (newest) report(*newest, false);
      run_.poll_saves();
      done = step;
      continue;
    }
    if (is_watched(step)) watch_while_idle(step);
    Facts facts = collect(due, agree(signals), owes_save);
    if (validates(facts)) {
      validate(*newest, signals);
      facts = collect(due, agree(signals), owes_save);
    }
    report(*newest, due.last || due.validation || facts.wishes.stop);
    compare_replicas(facts, step);
    const Actions actions = decide(facts);
    done = perform(actions, facts, step);
    owes_save = actions.owes_save;
    stopped = actions.next == Next::kStop;
  }
  return stopped ? Outcome::kStopped : Outcome::kDone;
}

Due Trainer::due_after(int64_t step, bool owes_save) const {
  const DiskCheckpoints& checkpoints = run_.checkpoints();
  Due due;
  due.last = step == config_.training.steps;
  due.save = checkpoints.due(step) || (owes_save && !checkpoints.pending());
  due.memory_save = memory_checkpoints_.due(step);
  due.validation = validator_ && config_.validation.every > 0 && (due.last || step % config_.validation.every == 0);
  due.comparison = comparison_.due(step) && !due.last;
  due.fp8_again = comparison_.ends_fallback(step);
  return due;
}

void Trainer::queue_step(int64_t step, StopSignals& signals) {
  for (const auto& observer : run_.observers()) observer->before_batch(step);
  Step next = comparison_.next_batch(step);
  signals.at_step(step);
  run_.queue_step(std::move(next), guard_.loss_limit(step));
}

bool Trainer::is_watched(int64_t step) const {
  const auto& observers = run_.observers();
  return std::any_of(observers.begin(), observers.end(),
                     [&](const auto& observer) { return observer->wants_result(step); });
}

void Trainer::watch_while_idle(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& observer : run_.observers()) observer->while_idle(step);
  account(Goodput::kChecks, begin);
}

std::optional<Step> Trainer::finish_steps(bool all) {
  std::optional<Step> newest;
  while (run_.results().pending() > (all || guard_.has_given_up() ? 0 : steps_in_flight_)) {
    if (newest) report(*newest, false);
    newest = pop_step();
  }
  return newest;
}

Step Trainer::pop_step() {
  Step step = run_.pop_step();
  const double lost_ms = std::min(step.data_lost_ms, step.step_ms);
  goodput_->add(step.skipped ? Goodput::kSkipped : Goodput::kSteps, (step.step_ms - lost_ms) / 1e3);
  goodput_->add(Goodput::kData, lost_ms / 1e3);
  goodput_->add(Goodput::kSaving, std::max(step.pause_ms / 1e3 - std::exchange(accounted_s_, 0), 0.0));
  judge(step);
  log_->count(step.row);
  return step;
}

void Trainer::judge(Step& step) {
  if (step.skipped && guard_.skipped_in_a_row() == 0) good_ = progress_after(step.number - 1);
  const double loss = step.loss();
  step.judgement = guard_.judge({.step = step.number,
                                 .loss = loss,
                                 .grad_norm = step.grad_norm,
                                 .step_ms = step.step_ms,
                                 .sequences = config_.training.batch_schedule().batch_size(step.number),
                                 .skipped = step.skipped});
  loader_state_ = step.loader_state;
  comparison_.add(step.number, loss);
  step.row.set("loss_z", step.judgement.loss_z);
  step.row.set("grad_norm_z", step.judgement.grad_norm_z);
  step.row.set("slowdown", step.judgement.slowdown);
  step.row.set("precision_gap", comparison_.gap());
  if (guard_.skipped() > 0) step.row.set("skipped_steps", guard_.skipped());
  if (!runtime_.group().is_root()) return;
  if (comparison_.wants_rollback()) wanted_.roll_back(Back::kComparison, 0);
  warn_of(step);
  if (step.judgement.spike && config_.training.on_loss_spike == OnLossSpike::kRollback) {
    wanted_.roll_back(Back::kCheckpoint, step.number);
  }
}

// All ranks do the same at the same step, whichever of them got the signal. The batches of a comparison are kept until
// all ranks know that the run does not repeat its steps.
Wishes Trainer::agree(const StopSignals& signals) {
  Wishes wishes = wanted_;
  wishes.stop = signals.requested();
  wishes.save = run_.checkpoints().has_time_passed();
  wishes = Wishes::unpack(runtime_.group().all_reduce_or(wishes.pack()));
  if (wishes.back != Back::kComparison) comparison_.settle();
  return wishes;
}

Facts Trainer::collect(const Due& due, const Wishes& wishes, bool owes_save) {
  DiskCheckpoints& checkpoints = run_.checkpoints();
  Facts facts{.due = due,
              .wishes = wishes,
              .skipping = guard_.skipped_in_a_row() > 0,
              .over_limit = guard_.has_given_up(),
              .comparing = comparison_.running(),
              .owes_save = owes_save};
  run_.poll_saves();
  if ((due.save || wishes.save) && checkpoints.pending()) {
    const auto begin = std::chrono::steady_clock::now();
    checkpoints.wait_briefly();
    account(Goodput::kSaving, begin);
  }
  if (wishes.back != Back::kNone) {
    checkpoints.complete_pending_save();
    facts.has_checkpoint = checkpoints.last_path().has_value();
  }
  facts.save_pending = checkpoints.pending();
  return facts;
}

void Trainer::compare_replicas(Facts& facts, int64_t step) {
  const Save save = decide(facts).save;
  if (save == Save::kNone || save == Save::kLastGood) return;
  facts.save_allowed = run_.allows_save(step);
}

void Trainer::validate(Step& step, const StopSignals& signals) {
  const auto begin = std::chrono::steady_clock::now();
  const auto validation = validator_->loss(run_.model(), [&] { return agree(signals).stop; });
  account(Goodput::kValidation, begin);
  if (!validation) return;
  step.row.set("validation_loss", validation->loss);
  NumbersByName by_dataset;
  const auto& datasets = validator_->datasets();
  for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
    by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
  }
  step.row.set("validation_loss_by_dataset", std::move(by_dataset));
}

void Trainer::report(const Step& step, bool always) {
  const bool due = step.number % config_.logging.every == 0 || !step.row.fp8.empty();
  const Judgement& judgement = step.judgement;
  const bool stands_out =
      judgement.loss_z || judgement.grad_norm_z || step.skipped || step.row.get("precision_gap").has_value();
  if (!due && !always && !stands_out && !is_first(step.number)) return;
  MetricRow row = step.row;
  row.set("goodput", goodput_->share());
  log_->report(std::move(row));
  if (runtime_.group().is_root()) write_goodput(false);
}

std::optional<int64_t> Trainer::perform(const Actions& actions, const Facts& facts, int64_t step) {
  say(actions.notice, facts, step);
  if (facts.wishes.save) run_.checkpoints().restart_clock();
  save(actions.save, step);
  wanted_ = {};
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

void Trainer::say(Notice notice, const Facts& facts, int64_t step) const {
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
      log_event(EventKind::kWarning, facts.wishes.spike, "there is no checkpoint to go back to from step {}",
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

void Trainer::save(Save which, int64_t step) {
  switch (which) {
    case Save::kNone:
    case Save::kLastGood:  // give_up() saves it.
      return;
    case Save::kRefused:
      refuse_final_save(step);
    case Save::kInMemory:
    case Save::kOnDisk:
    case Save::kFinal:
      log_->flush();
      run_.save(progress_after(step), which);
  }
}

// Thrown before what is in memory is given up.
void Trainer::refuse_final_save(int64_t step) {
  run_.checkpoints().complete_pending_save();
  throw AgreedError(
      fmt::format("the checkpoint of step {} is not saved: its copies differ; it is the final one, and the last "
                  "good checkpoint is {}",
                  step, run_.checkpoints().last()));
}

// The weights are those of the last good step, which is saved unless it was already.
void Trainer::give_up(int64_t step) {
  DiskCheckpoints& checkpoints = run_.checkpoints();
  checkpoints.complete_pending_save();
  if (good_.step > checkpoints.saved_step() && run_.weights_are_finite() && run_.allows_save(good_.step)) {
    log_->flush();
    run_.save(good_, Save::kLastGood);
    checkpoints.complete_pending_save();
  }
  if (runtime_.group().is_root()) write_goodput(true);
  throw AgreedError(
      fmt::format("the loss or the gradient norm of {} is not finite or a spike, more than "
                  "training.max_skipped_steps in a row; the last checkpoint is {}",
                  describe_steps(good_.step + 1, step), checkpoints.last()));
}

void Trainer::roll_back(Next to, int64_t spike) {
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
  goodput_->set_back(run_.start().steps_s);
  account(Goodput::kRecovery, begin);
}

void Trainer::roll_back_to_checkpoint(int64_t spike) {
  const std::string last = run_.checkpoints().last();
  rollbacks_ = last == std::exchange(rolled_back_to_, last) ? rollbacks_ + 1 : 1;
  runtime_.group().agree([&] {
    CHECK(rollbacks_ <= std::max<int64_t>(config_.training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks_ - 1, last);
  });
  run_.roll_back(spike);
}

void Trainer::end_run() {
  const auto saving = std::chrono::steady_clock::now();
  run_.checkpoints().finish();
  memory_checkpoints_.free();
  goodput_->add(Goodput::kSaving, seconds_since(saving));
  if (!runtime_.group().is_root()) return;
  write_goodput(true);
  log_->end();
  log_event(EventKind::kNote, 0, goodput_->report());
}

Progress Trainer::progress_after(int64_t step) const {
  return {.step = step,
          .tokens = run_.tokens_seen(step),
          .steps_s = goodput_->steps_seconds(),
          .loader_state = loader_state_,
          .guard = guard_.to_json(),
          .bfloat16_until = run_.start().bfloat16_until};
}

void Trainer::account(Goodput::Use use, std::chrono::steady_clock::time_point begin) {
  const double seconds = seconds_since(begin);
  goodput_->add(use, seconds);
  accounted_s_ += seconds;
}

void Trainer::write_goodput(bool end) {
  if (std::function<void()> writing = goodput_->writing(end)) log_->post(std::move(writing));
}

}  // namespace octavo
