#include "app/train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace octavo {

TrainingLoop::TrainingLoop(const RunParts& parts)
    : parts_(parts), actions_(parts), steps_in_flight_(parts.runtime.stream().is_cuda() ? 1 : 0) {}

RunOutcome TrainingLoop::run(StopSignals& signals) {
  std::optional<int64_t> done = resume();
  bool save_postponed = false;
  bool stopped = false;
  while (done) {
    const int64_t step = *done + 1;
    const Due due = due_after(step, save_postponed);
    queue_step(step, signals);
    // The loop waits for a step before a save or validation, so that weights that a bad step has changed are never
    // saved. It also waits for the first step, whose line shows that the run has started. Any other step is still in
    // flight while the next one is queued. agree_on_requests() is a collective, which all ranks skip if they must wait
    // anyway.
    const bool must_wait = steps_in_flight_ == 0 || due.any() || is_first(step) || is_watched(step);
    const bool waits = must_wait || agree_on_requests(signals).any();
    std::optional<Step> newest = finish_steps(step, waits);
    // If this step is still in flight, nothing is due after it and no rank requests anything, because the loop would
    // have waited for it otherwise. So there is nothing to decide, and the next step is queued.
    if (parts_.run.results().pending() > 0) {
      if (newest) report(*newest, false);
      parts_.run.poll_saves();
      done = step;
      continue;
    }
    if (is_watched(step)) watch_while_idle(step);
    Facts facts = collect(due, agree_on_requests(signals), save_postponed);
    if (validates(facts)) {
      validate(*newest, signals);
      facts = collect(due, agree_on_requests(signals), save_postponed);
      facts.validated = newest->row.get("validation_loss").has_value();
    }
    report(*newest, due.last || due.validation || facts.requests.stop);
    compare_replicas(facts, step);
    const Actions actions = decide(facts);
    done = actions_.perform(actions, facts, step);
    if (actions.next == Next::kToCheckpoint) done = resume();
    requests_ = {};
    save_postponed = actions.save_postponed;
    stopped = actions.next == Next::kStop;
  }
  return stopped ? RunOutcome::kStopped : RunOutcome::kDone;
}

std::optional<int64_t> TrainingLoop::resume() {
  const int64_t step = parts_.run.start().step;
  const Facts facts{.due = due_after_loading(due_after(step, false), step)};
  return actions_.perform(decide(facts), facts, step);
}

Due TrainingLoop::due_after(int64_t step, bool save_postponed) const {
  const DiskCheckpoints& checkpoints = parts_.run.checkpoints();
  Due due;
  due.last = step == parts_.config.training.steps;
  due.save = checkpoints.due(step) || (save_postponed && checkpoints.ready());
  due.memory_save = parts_.memory_checkpoints.due(step);
  due.validation = parts_.validator && parts_.config.validation.every > 0 &&
                   (due.last || step % parts_.config.validation.every == 0);
  due.comparison = parts_.comparison.due(step) && !due.last;
  due.resume_fp8 = parts_.comparison.ends_fallback(step);
  return due;
}

void TrainingLoop::queue_step(int64_t step, StopSignals& signals) {
  for (const auto& observer : parts_.run.observers()) observer->before_batch(step);
  Step next = parts_.comparison.next_batch(step);
  signals.at_step(step);
  parts_.run.queue_step(std::move(next), parts_.step_guard.loss_limit(step));
}

bool TrainingLoop::is_watched(int64_t step) const {
  const auto& observers = parts_.run.observers();
  return std::any_of(observers.begin(), observers.end(),
                     [&](const auto& observer) { return observer->wants_result(step); });
}

void TrainingLoop::watch_while_idle(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& observer : parts_.run.observers()) observer->while_idle(step);
  actions_.account(Goodput::kChecks, begin);
}

std::optional<Step> TrainingLoop::finish_steps(int64_t step, bool all) {
  std::optional<Step> newest;
  const auto waits = [&] { return all || parts_.step_guard.has_given_up() || is_watched(step); };
  while (parts_.run.results().pending() > (waits() ? 0 : steps_in_flight_)) {
    if (newest) report(*newest, false);
    newest = pop_step();
  }
  return newest;
}

Step TrainingLoop::pop_step() {
  Step step = parts_.run.pop_step();
  actions_.note_result();
  const double lost_ms = std::min(step.data_lost_ms, step.step_ms);
  parts_.goodput.add(step.skipped ? Goodput::kSkipped : Goodput::kSteps, (step.step_ms - lost_ms) / 1e3);
  parts_.goodput.add(Goodput::kData, lost_ms / 1e3);
  parts_.goodput.add(Goodput::kSaving, std::max(step.pause_ms / 1e3 - actions_.take_accounted(), 0.0));
  judge(step);
  parts_.log.count(step.row);
  return step;
}

void TrainingLoop::judge(Step& step) {
  if (step.skipped && parts_.step_guard.skipped_in_a_row() == 0) actions_.remember_good_state(step.number - 1);
  step.judgement = parts_.step_guard.judge(step);
  actions_.set_loader_state(step.loader_state);
  parts_.comparison.add(step.number, step.loss());
  step.row.set("loss_z", step.judgement.loss_z);
  step.row.set("grad_norm_z", step.judgement.grad_norm_z);
  step.row.set("slowdown", step.judgement.slowdown);
  step.row.set("precision_gap", parts_.comparison.gap());
  if (parts_.step_guard.skipped() > 0) step.row.set("skipped_steps", parts_.step_guard.skipped());
  if (!parts_.runtime.group().is_root()) return;
  if (parts_.comparison.wants_rollback() || (parts_.step_guard.has_given_up() && parts_.comparison.can_roll_back())) {
    requests_.roll_back(RollBack::kComparison, 0);
  }
  log_step_warnings(step);
  if (step.judgement.spike && parts_.config.training.on_loss_spike == OnLossSpike::kRollback) {
    requests_.roll_back(RollBack::kCheckpoint, step.number);
  }
}

// Combines the requests, so that all ranks act at the same step, whichever rank received a signal. The batches of a
// comparison are kept until all ranks know that the run does not repeat its steps.
Requests TrainingLoop::agree_on_requests(const StopSignals& signals) {
  Requests requests = requests_;
  requests.stop = signals.requested();
  requests.save = parts_.run.checkpoints().has_time_passed();
  requests = Requests::unpack(parts_.runtime.group().all_reduce_or(requests.pack()));
  if (requests.roll_back_to != RollBack::kComparison) parts_.comparison.settle();
  return requests;
}

Facts TrainingLoop::collect(const Due& due, const Requests& requests, bool save_postponed) {
  DiskCheckpoints& checkpoints = parts_.run.checkpoints();
  Facts facts{.due = due,
              .requests = requests,
              .skipping = parts_.step_guard.skipped_in_a_row() > 0,
              .over_limit = parts_.step_guard.has_given_up(),
              .comparing = parts_.comparison.running(),
              .save_postponed = save_postponed};
  parts_.run.poll_saves();
  const bool ends = due.last || requests.stop;
  if ((due.save || requests.save) && !ends && !save_postponed && !checkpoints.ready()) {
    const auto begin = std::chrono::steady_clock::now();
    checkpoints.wait_briefly();
    actions_.account(Goodput::kSaving, begin);
  }
  if (requests.roll_back_to != RollBack::kNone) {
    checkpoints.complete_pending_save();
    facts.has_checkpoint = checkpoints.last_path().has_value();
  }
  facts.save_waits = !checkpoints.ready();
  return facts;
}

void TrainingLoop::compare_replicas(Facts& facts, int64_t step) {
  const Save save = decide(facts).save;
  if (save == Save::kNone || save == Save::kLastGood) return;
  facts.save_allowed = parts_.run.allows_save(step);
}

void TrainingLoop::validate(Step& step, const StopSignals& signals) {
  const auto begin = std::chrono::steady_clock::now();
  const auto validation = parts_.validator->loss(parts_.run.model(), [&] { return agree_on_requests(signals).stop; });
  actions_.account(Goodput::kValidation, begin);
  if (!validation) return;
  if (validation->loss) step.row.set("validation_loss", validation->loss);
  NumbersByName by_dataset;
  const auto& datasets = parts_.validator->datasets();
  for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
    if (validation->by_dataset[d].targets == 0) continue;
    by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
  }
  step.row.set("validation_loss_by_dataset", std::move(by_dataset));
}

void TrainingLoop::report(const Step& step, bool always) {
  const bool due = step.number % parts_.config.logging.every == 0 || !step.row.fp8.empty();
  const Judgement& judgement = step.judgement;
  const bool stands_out =
      judgement.loss_z || judgement.grad_norm_z || step.skipped || step.row.get("precision_gap").has_value();
  if (!due && !always && !stands_out && !is_first(step.number)) return;
  MetricRow row = step.row;
  row.set("goodput", parts_.goodput.share());
  row.set("wall_s", parts_.goodput.wall_seconds());
  parts_.log.report(std::move(row));
  if (parts_.runtime.group().is_root()) actions_.write_goodput(false);
}

}  // namespace octavo
