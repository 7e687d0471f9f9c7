#include "app/train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace octavo {

TrainingLoop::TrainingLoop(Session& session, Training& training)
    : session_(session),
      training_(training),
      config_(training.config()),
      goodput_(*session.goodput),
      step_guard_(training.step_guard()),
      comparison_(training),
      actions_(session, training, comparison_),
      steps_in_flight_(session.runtime.stream().is_cuda() ? 1 : 0) {}

Outcome TrainingLoop::run(StopSignals& signals) {
  training_.results().start();
  std::optional<Outcome> outcome = resume(signals);
  for (int64_t step = training_.start().step + 1; !outcome; ++step) {
    const Due due = due_after(step);
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
    session_.poll_command();
    if (training_.results().pending() > 0) {
      if (newest) report(*newest, false);
      training_.poll_saves();
      continue;
    }
    if (is_watched(step)) watch_while_idle(step);
    Facts facts = collect(due, agree_on_requests(signals));
    if (validates(facts)) {
      validate(*newest, signals);
      facts = collect(due, agree_on_requests(signals));
      facts.validated = newest->row.get("validation_loss").has_value();
    }
    report(*newest, due.last || due.validation || facts.requests.stop);
    compare_replicas(facts, step);
    const Actions actions = decide(facts);
    outcome = actions_.perform(actions, facts, step, signals);
    requests_ = {};
    session_.checkpoints.set_postponed(actions.save_postponed);
  }
  return std::move(*outcome);
}

std::optional<Outcome> TrainingLoop::resume(const StopSignals& signals) {
  const int64_t step = training_.start().step;
  const Facts facts{.due = due_after_loading(due_after(step), step)};
  return actions_.perform(decide(facts), facts, step, signals);
}

Due TrainingLoop::due_after(int64_t step) const {
  const DiskCheckpoints& checkpoints = session_.checkpoints;
  Due due;
  due.last = step == config_.training.steps;
  due.save = checkpoints.due(step) || (checkpoints.is_postponed() && checkpoints.ready());
  due.memory_save = session_.memory_checkpoints.due(step);
  due.validation = training_.validator() != nullptr && config_.validation.every > 0 &&
                   (due.last || step % config_.validation.every == 0);
  due.comparison = comparison_.due(step) && !due.last;
  due.resume_fp8 = comparison_.ends_fallback(step);
  return due;
}

void TrainingLoop::queue_step(int64_t step, StopSignals& signals) {
  for (const auto& observer : training_.observers()) observer->before_batch(step);
  Step next = training_.next_batch(step);
  signals.at_step(step);
  training_.queue_step(std::move(next), step_guard_.loss_limit(step));
}

bool TrainingLoop::is_watched(int64_t step) const {
  const auto& observers = training_.observers();
  return std::ranges::any_of(observers, [&](const auto& observer) { return observer->wants_result(step); });
}

void TrainingLoop::watch_while_idle(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& observer : training_.observers()) observer->while_idle(step);
  session_.account(Goodput::kChecks, begin);
}

std::optional<Step> TrainingLoop::finish_steps(int64_t step, bool all) {
  std::optional<Step> newest;
  const auto waits = [&] { return all || step_guard_.has_given_up() || is_watched(step); };
  while (training_.results().pending() > (waits() ? 0 : steps_in_flight_)) {
    if (newest) report(*newest, false);
    newest = pop_step();
  }
  return newest;
}

Step TrainingLoop::pop_step() {
  Step step = training_.pop_step();
  actions_.note_result();
  actions_.set_last_loss(step.loss());
  const double lost_ms = std::min(step.data_lost_ms, step.step_ms);
  goodput_.add(step.skipped ? Goodput::kSkipped : Goodput::kSteps, (step.step_ms - lost_ms) / 1e3);
  goodput_.add(Goodput::kData, lost_ms / 1e3);
  goodput_.add(Goodput::kSaving, std::max(step.pause_ms / 1e3 - session_.take_accounted(), 0.0));
  judge(step);
  training_.log().count(step.row);
  return step;
}

void TrainingLoop::judge(Step& step) {
  if (step.skipped && step_guard_.skipped_in_a_row() == 0) actions_.remember_good_state(step.number - 1);
  step.judgement = step_guard_.judge(step);
  actions_.set_loader_state(step.loader_state);
  comparison_.add(step.number, step.loss(), session_.runtime.group().is_root());
  step.row.set("loss_z", step.judgement.loss_z);
  step.row.set("grad_norm_z", step.judgement.grad_norm_z);
  step.row.set("slowdown", step.judgement.slowdown);
  step.row.set("precision_gap", comparison_.gap());
  if (step_guard_.skipped() > 0) step.row.set("skipped_steps", step_guard_.skipped());
  if (!session_.runtime.group().is_root()) return;
  if (comparison_.wants_rollback() || (step_guard_.has_given_up() && comparison_.can_roll_back())) {
    requests_.roll_back(RollBack::kComparison, 0);
  }
  log_step_warnings(step);
  if (step.judgement.spike && config_.training.on_loss_spike == OnLossSpike::kRollback) {
    requests_.roll_back(RollBack::kCheckpoint, step.number);
  }
}

// Combines the requests, so that all ranks act at the same step, whichever rank received a signal.
Requests TrainingLoop::agree_on_requests(const StopSignals& signals) {
  Requests requests = requests_;
  requests.stop = signals.requested();
  requests.save = session_.checkpoints.has_time_passed();
  return Requests::unpack(session_.runtime.group().all_reduce_or(requests.pack()));
}

Facts TrainingLoop::collect(const Due& due, const Requests& requests) {
  DiskCheckpoints& checkpoints = session_.checkpoints;
  Facts facts{.due = due,
              .requests = requests,
              .skipping = step_guard_.skipped_in_a_row() > 0,
              .over_limit = step_guard_.has_given_up(),
              .comparing = comparison_.running(),
              .save_postponed = checkpoints.is_postponed()};
  training_.poll_saves();
  const bool ends = due.last || requests.stop;
  if ((due.save || requests.save) && !ends && !checkpoints.is_postponed() && !checkpoints.ready()) {
    const auto begin = std::chrono::steady_clock::now();
    checkpoints.wait_briefly();
    session_.account(Goodput::kSaving, begin);
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
  facts.save_allowed = training_.allows_save(step);
}

void TrainingLoop::validate(Step& step, const StopSignals& signals) {
  const auto begin = std::chrono::steady_clock::now();
  const auto validation =
      training_.validator()->loss(training_.state().model, [&] { return agree_on_requests(signals).stop; });
  session_.account(Goodput::kValidation, begin);
  if (!validation) return;
  if (validation->loss) step.row.set("validation_loss", validation->loss);
  NumbersByName by_dataset;
  const auto& datasets = training_.validator()->datasets();
  for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
    if (validation->by_dataset[d].targets == 0) continue;
    by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
  }
  step.row.set("validation_loss_by_dataset", std::move(by_dataset));
}

void TrainingLoop::report(const Step& step, bool always) {
  const bool due = step.number % config_.logging.every == 0 || !step.row.fp8.empty();
  const Judgement& judgement = step.judgement;
  const bool stands_out =
      judgement.loss_z || judgement.grad_norm_z || step.skipped || step.row.get("precision_gap").has_value();
  if (!due && !always && !stands_out && !is_first(step.number)) return;
  MetricRow row = step.row;
  row.set("goodput", goodput_.share());
  row.set("wall_s", goodput_.wall_seconds());
  session_.add_evaluation(row);
  training_.log().report(std::move(row));
  if (session_.runtime.group().is_root()) actions_.write_goodput(false);
}

}  // namespace octavo
