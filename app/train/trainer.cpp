#include "app/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "app/memory/plan_memory.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// "step 7" or "steps 7 to 9".
std::string describe_steps(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string describe_bad_step(const FinishedStep& step, StepVerdict verdict, const StepMarks& marks) {
  const double loss = unsigned_nan(step.loss());
  const char* outcome = verdict == StepVerdict::kSkipped ? "; it changes nothing" : "";
  const std::string samples =
      fmt::format("samples {} to {}{}", step.data.samples.begin, step.data.samples.end - 1, outcome);
  if (!std::isfinite(loss) || !std::isfinite(step.result.grad_norm)) {
    return fmt::format("step {}: the loss is {:.4g} and the gradient norm {:.4g}; {}", step.step(), loss,
                       unsigned_nan(step.result.grad_norm), samples);
  }
  return fmt::format("step {}: the loss of {:.4f} is a spike, {:.1f} standard deviations above those before; {}",
                     step.step(), loss, marks.loss_z.value_or(0), samples);
}

// Of what is wrong with a step, or stands out.
void warn_of(const FinishedStep& step, StepVerdict verdict, const StepMarks& marks) {
  if (verdict != StepVerdict::kGood) log_line(LogLevel::kWarning, describe_bad_step(step, verdict, marks));
  if (marks.grad_norm_z) {
    log_warning("step {}: the gradient norm of {:.3f} is a spike, {:.1f} standard deviations above those before",
                step.step(), step.result.grad_norm, *marks.grad_norm_z);
  }
  if (marks.slowdown) {
    log_warning("step {}: it took {:.0f} ms, {:.1f} times as long as those before", step.step(), step.result.step_ms,
                *marks.slowdown);
  }
}

}  // namespace

Trainer::Trainer(const Config& config, Runtime& runtime, StartupTimer& timer, std::optional<Goodput> goodput,
                 Console* console, RunFolder* folder)
    : config_(config),
      runtime_(runtime),
      timer_(timer),
      run_(config, runtime, timer,
           [&](Arena& arena) {
             if (!config.data.validation.empty()) validator_.emplace(config, runtime, arena);
           }),
      guard_(config.training),
      precision_guard_(config.precision_guard),
      links_(config_.logging, runtime),
      goodput_(std::move(goodput)),
      first_of_process_(!goodput_) {
  guard_.from_json(run_.start().guard);
  loader_state_ = run_.start().loader_state;
  if (config.precision_guard.every > 0 && !has_precision_guard(config) && runtime.group().is_root()) {
    log_warning("precision.guard.every is {}, but no product is in FP8, so there is nothing to compare",
                config.precision_guard.every);
  }
  if (is_finished()) return;
  const bool continues = config.checkpoint.resume != "never";
  runtime.group().agree_on_files("opening the log", [&] {
    if (folder != nullptr) folder->lock();
    if (folder != nullptr && first_of_process_) folder->claim(resumed_from());
    log_.emplace(config_, runtime, runtime.group().is_root(),
                 continues ? std::optional(run_.start().step) : std::nullopt, console);
  });
  if (folder != nullptr && first_of_process_) folder->open();
  run_.checkpoints().leave_other_runs(run_.start().step);
  if (!goodput_) goodput_.emplace(config.logging.dir, continues && runtime.group().is_root(), run_.start().steps_s);
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
    run_.checkpoints().free_memory();
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
  if (!first_of_process_) return;
  run_.corruption().say_what_is_checked();
  log_info("started in {}", timer_.report());
}

Trainer::Outcome Trainer::train(StopSignals& signals) {
  goodput_->add(Goodput::kStart, first_of_process_ ? seconds_since_launch() : seconds_since(begin_));
  const auto tuning = std::chrono::steady_clock::now();
  run_.warm_up();
  goodput_->add(Goodput::kTuning, seconds_since(tuning));
  log_start();
  Stream& stream = runtime_.stream();
  const int64_t total_steps = config_.training.steps;
  StepResults& results = run_.results();
  RunCheckpoints& checkpoints = run_.checkpoints();
  bool save_postponed = false;
  results.start(stream);
  for (int64_t step = run_.start().step + 1; step <= total_steps; ++step) {
    if (run_.in_bfloat16() && step > run_.bfloat16_until()) back_to_fp8(step, signals);
    const std::unique_ptr<StepTrace> trace = step == config_.trace.step ? run_.trace() : nullptr;
    run_.next_batch();
    signals.at_step(step);
    const bool first = step == run_.start().step + 1;
    links_.begin_step(run_.state(), step, first);
    run_.queue_step(step, guard_.loss_limit(step));
    links_.end_step();

    Request request = agreed_request(signals);
    if (!precision_guard_.comparing() && request != kUseBFloat16) run_.forget_batches();
    const bool last = step == total_steps;
    const bool validating = validator_ && request == kGoOn && config_.validation.every > 0 &&
                            (last || step % config_.validation.every == 0);
    const bool due = last || save_postponed || checkpoints.due(step);
    const bool comparing = has_precision_guard(config_) && !run_.in_bfloat16() && precision_guard_.due(step) && !last;
    const bool in_memory = !due && checkpoints.due_in_memory(step);
    const bool waiting =
        validating || due || in_memory || comparing || trace || links_.wants_probe() || request != kGoOn;
    // A step that is saved or validated is waited for, so that weights spoiled by a bad step are never saved, and the
    // first one, whose line says that the run is under way; on a GPU any other is read when the next one is queued.
    const int64_t in_flight = stream.is_cuda() && !waiting && !first ? 1 : 0;
    while (results.pending() > in_flight) {
      const FinishedStep finished = pop_step();
      const bool current = results.pending() == 0;
      if (current && trace) write_trace(*trace, step);
      finish_step(finished, current && (last || request == kStop), current && validating, signals);
    }
    if (links_.wants_probe() && results.pending() == 0) probe_links();
    // A signal, or what was just seen of a step.
    if (validating || due || in_memory || comparing) request = std::max(request, agreed_request(signals));
    if (goes_back(request)) {
      go_back(request);
      step = run_.start().step;
      continue;
    }
    checkpoints.poll();
    // After steps that were passed over the weights are those of a checkpoint before them; of a comparison it is not
    // known yet what they are worth.
    const bool stopping = request == kStop;
    const bool spoiled = stopping && was_to_go_back(step);
    save_postponed = due && !last && !stopping && (guard_.skipped_in_a_row() > 0 || precision_guard_.comparing());
    const bool saving = (due && !save_postponed) || stopping;
    const bool keeping =
        !spoiled && (saving || (in_memory && guard_.skipped_in_a_row() == 0 && !precision_guard_.comparing()));
    using Save = RunCheckpoints::Save;
    const Save which = last || stopping ? Save::kFinal : saving ? Save::kOneOfMany : Save::kInMemory;
    if (keeping && run_.corruption().may_save(step)) {
      save(progress_after(step), which);
    } else if (keeping && which == Save::kFinal) {
      refuse_final_save(step);
    }
    if (waiting) results.start(stream);
    if (comparing && !stopping) measure_in_bfloat16(step);
    if (stopping) {
      end_run();
      return Outcome::kStopped;
    }
  }
  end_run();
  return Outcome::kDone;
}

// Of copies that differ. Thrown before what is in memory is given up.
void Trainer::refuse_final_save(int64_t step) {
  run_.checkpoints().complete_pending_save();
  runtime_.group().agree([&] {
    throw Error(
        fmt::format("the checkpoint of step {} is not saved: its copies differ; it is the final one, and the last good "
                    "checkpoint is {}",
                    step, run_.checkpoints().last()));
  });
}

void Trainer::end_run() {
  const auto saving = std::chrono::steady_clock::now();
  run_.checkpoints().finish();
  run_.checkpoints().free_memory();
  goodput_->add(Goodput::kSaving, seconds_since(saving));
  if (!runtime_.group().is_root()) return;
  write_goodput(true);
  log_->end();
  log_line(LogLevel::kInfo, goodput_->report());
}

// All ranks do the same at the same step, whichever of them got the signal. Spikes are told by rank 0, and by its clock
// when a checkpoint is due.
Trainer::Request Trainer::agreed_request(const StopSignals& signals) {
  const Request wish =
      signals.requested() ? kStop : std::max(wanted_, run_.checkpoints().has_time_passed() ? kSave : kGoOn);
  const Request request = runtime_.group().all_reduce_max(wish);
  if (request != kSave) return request;
  run_.checkpoints().set_time_due();
  return kGoOn;
}

FinishedStep Trainer::pop_step() {
  FinishedStep step = run_.pop_step();
  const StepResult& result = step.result;
  const double lost_ms = std::min(step.data.data_lost_ms, result.step_ms);
  goodput_->add(result.skipped ? Goodput::kSkipped : Goodput::kSteps, (result.step_ms - lost_ms) / 1e3);
  goodput_->add(Goodput::kData, lost_ms / 1e3);
  goodput_->add(Goodput::kSaving, std::max(result.pause_ms / 1e3 - std::exchange(validation_s_, 0), 0.0));
  links_.finish_step(result);
  judge(step);
  log_->count(step, run_.tokens_seen(step.step()), guard_.marks());
  return step;
}

// Where `step` is the last one judged.
Progress Trainer::progress_after(int64_t step) const {
  return {.step = step,
          .tokens = run_.tokens_seen(step),
          .steps_s = goodput_->steps_seconds(),
          .loader_state = loader_state_,
          .guard = guard_.to_json()};
}

void Trainer::judge(const FinishedStep& step) {
  const double loss = step.loss();
  if (step.result.skipped && guard_.skipped_in_a_row() == 0) good_ = progress_after(step.step() - 1);
  const auto sequences = static_cast<double>(config_.training.batch_schedule().batch_size(step.step()));
  const StepVerdict verdict = guard_.judge({.step = step.step(),
                                            .loss = loss,
                                            .grad_norm = step.result.grad_norm,
                                            .sample_ms = step.result.step_ms / sequences,
                                            .skipped = step.result.skipped});
  loader_state_ = step.data.loader_state;
  if (precision_guard_.comparing()) compare_with_bfloat16(step.step(), loss);
  if (runtime_.group().is_root()) warn_of(step, verdict, guard_.marks());
  const bool goes_back = verdict == StepVerdict::kSpike && config_.training.on_loss_spike == OnLossSpike::kRollback;
  if (goes_back && runtime_.group().is_root()) wanted_ = std::max(wanted_, kRollBack + step.step());
}

void Trainer::finish_step(const FinishedStep& step, bool always, bool validating, const StopSignals& signals) {
  std::optional<ValidationLoss> validation;
  if (validating) {
    const auto begin = std::chrono::steady_clock::now();
    validation = validator_->loss(run_.model(), [&] { return should_stop(signals); });
    validation_s_ = seconds_since(begin);
    goodput_->add(Goodput::kValidation, validation_s_);
  }
  const bool due = step.step() % config_.logging.every == 0;
  const bool first = step.step() == run_.start().step + 1;
  const bool stands_out = guard_.marks().loss_z || guard_.marks().grad_norm_z || step.result.skipped;
  if (due || first || always || validating || stands_out || precision_gap_ || run_.fp8_due(step.step()))
    report(step, validation);
  if (guard_.has_given_up()) give_up(step.step());
}

void Trainer::write_trace(StepTrace& trace, int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string path = fmt::format("{}/trace_step_{:08}.json", config_.logging.dir, step);
  try {
    trace.write(path, fmt::format("step {} of {}, {}", step, config_.logging.dir, runtime_.describe()));
    if (runtime_.group().is_root()) log_info("a trace of step {} is in {}, for https://ui.perfetto.dev", step, path);
  } catch (const std::exception& error) {  // a run is worth more than its trace
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root()) log_warning("{}; step {} has no trace", error.what(), step);
  }
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  run_.results().start_anew(runtime_.stream());
}

// Gradients are of no use between steps.
void Trainer::probe_links() {
  const auto begin = std::chrono::steady_clock::now();
  links_.probe(run_.state().parameters.fsdp().gradient_shards());
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  run_.results().start_anew(runtime_.stream());
}

// The steps behind this one may have gone well: then the run goes on. Else the weights are those of the last good step,
// whose checkpoint is saved.
void Trainer::give_up(int64_t step) {
  while (run_.results().pending() > 0 && guard_.has_given_up()) {
    const FinishedStep finished = pop_step();
    step = finished.step();
    report(finished, {});
  }
  if (!guard_.has_given_up()) return;
  run_.checkpoints().complete_pending_save();
  if (good_.step > run_.saved_step() && run_.weights_are_finite() && run_.corruption().may_save(good_.step)) {
    save(good_, RunCheckpoints::Save::kOneOfMany);
    run_.checkpoints().complete_pending_save();
  }
  if (runtime_.group().is_root()) write_goodput(true);
  runtime_.group().agree([&] {
    throw Error(
        fmt::format("the loss or the gradient norm of {} is not finite or a spike, more than "
                    "training.max_skipped_steps in a row; the last checkpoint is {}",
                    describe_steps(good_.step + 1, step), run_.checkpoints().last()));
  });
}

bool Trainer::goes_back(Request request) {
  if (request == kGoOn || request == kStop) return false;
  if (request == kUseBFloat16) return true;
  run_.checkpoints().complete_pending_save();
  if (run_.checkpoints().last_path()) return true;
  wanted_ = kGoOn;
  if (runtime_.group().is_root()) log_warning("there is no checkpoint to go back to from step {}", request - kRollBack);
  return false;
}

// Whether a stop came before the run could go back from what it has: that is no state to go on from, and the checkpoint
// that it was to go back to is; where there is none, what there is is better than nothing.
bool Trainer::was_to_go_back(int64_t step) {
  if (runtime_.group().all_reduce_max(wanted_) == kGoOn) return false;
  run_.checkpoints().complete_pending_save();
  if (!run_.checkpoints().last_path()) return false;
  if (runtime_.group().is_root()) {
    log_warning("step {} is not saved, as the run was to go back from it; it goes on from {}", step,
                run_.checkpoints().last());
  }
  return true;
}

void Trainer::go_back(Request request) {
  const auto begin = std::chrono::steady_clock::now();
  while (run_.results().pending() > 0) {
    if (run_.fp8_due(pop_step().step())) run_.pop_fp8();
  }
  wanted_ = kGoOn;
  precision_guard_.end();
  if (request == kUseBFloat16) {
    go_on_in_bfloat16();
  } else {
    roll_back(request - kRollBack);
  }
  guard_.from_json(run_.start().guard);
  loader_state_ = run_.start().loader_state;
  runtime_.stream().synchronize();
  goodput_->set_back(run_.start().steps_s);
  goodput_->add(Goodput::kRecovery, seconds_since(begin));
  run_.results().start_anew(runtime_.stream());
}

void Trainer::roll_back(int64_t spike) {
  const std::string last = run_.checkpoints().last();
  rollbacks_ = last == std::exchange(rolled_back_to_, last) ? rollbacks_ + 1 : 1;
  runtime_.group().agree([&] {
    CHECK(rollbacks_ <= std::max<int64_t>(config_.training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks_ - 1, last);
  });
  run_.roll_back(spike);
}

// From the state before the comparison, over the same samples.
void Trainer::go_on_in_bfloat16() {
  run_.switch_precision();
  run_.return_to(before_comparison_);
  run_.set_bfloat16_until(before_comparison_.step + config_.precision_guard.fallback_steps);
  if (!runtime_.group().is_root()) return;
  log_warning("back to step {} and on in bfloat16 up to step {}", before_comparison_.step, run_.bfloat16_until());
}

void Trainer::back_to_fp8(int64_t step, const StopSignals& signals) {
  while (run_.results().pending() > 0) finish_step(pop_step(), false, false, signals);
  const auto begin = std::chrono::steady_clock::now();
  run_.switch_with_state(step - 1);
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  run_.results().start_anew(runtime_.stream());
  if (runtime_.group().is_root())
    log_info("from step {} on in {} again", step,
             is_fp8(config_.precision.linear) ? precision_name(config_.precision) : "FP8");
}

// Takes the next steps in bfloat16, and then everything back: the run takes them in FP8.
void Trainer::measure_in_bfloat16(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  before_comparison_ = progress_after(step);
  std::vector<double> losses;
  run_.record_batches();
  run_.switch_with_state(step);
  const int64_t last = std::min(step + precision_guard_.steps(), config_.training.steps);
  for (int64_t s = step + 1; s <= last; ++s) losses.push_back(run_.loss_of_step(s));
  run_.switch_precision();
  run_.restore_kept(step);
  run_.replay_batches();
  precision_guard_.begin(step, losses);
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  run_.results().start_anew(runtime_.stream());
}

void Trainer::compare_with_bfloat16(int64_t step, double loss) {
  precision_gap_ = precision_guard_.compare(step, loss);
  if (!precision_gap_) return;
  precision_guard_.end();
  if (!runtime_.group().is_root()) return;
  const std::string found =
      fmt::format("precision.guard: the losses of {} in FP8 and in bfloat16 differ by {:.4g} of themselves",
                  describe_steps(precision_guard_.first_step() + 1, step), unsigned_nan(*precision_gap_));
  if (precision_guard_.tolerates(*precision_gap_)) return log_info("{}", found);
  log_warning("{}, more than {}", found, config_.precision_guard.tolerance);
  if (config_.precision_guard.action == OnPrecisionGap::kBFloat16) wanted_ = kUseBFloat16;
}

void Trainer::report(const FinishedStep& step, const std::optional<ValidationLoss>& validation) {
  StepContext context{.tokens = run_.tokens_seen(step.step()),
                      .skipped_steps = guard_.skipped(),
                      .marks = guard_.marks(),
                      .goodput = goodput_->share(),
                      .loss_by_dataset = run_.data_report().means(step.result.loss_sums, step.data.targets)};
  if (validation) {
    context.validation_loss = validation->loss;
    const auto& datasets = validator_->datasets();
    for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
      context.validation_loss_by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
    }
  }
  if (run_.fp8_due(step.step())) context.fp8 = run_.pop_fp8();
  context.precision_gap = std::exchange(precision_gap_, std::nullopt);
  log_->report(step, std::move(context));
  if (runtime_.group().is_root()) write_goodput(false);
}

void Trainer::write_goodput(bool end) {
  if (std::function<void()> writing = goodput_->writing(end)) log_->post(std::move(writing));
}

void Trainer::save(const Progress& progress, RunCheckpoints::Save which) {
  log_->flush();
  run_.save(progress, which);
}

}  // namespace octavo
