#include "app/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "app/memory/plan_memory.h"
#include "app/memory/training_options.h"
#include "app/run/weights.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "kernels/reduce.h"

namespace octavo {

namespace {

constexpr size_t kRecentSteps = 8;  // more than are pending

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// "step 7" or "steps 7 to 9".
std::string describe_steps(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string describe_bad_step(const FinishedStep& step, StepVerdict verdict, double z_score) {
  const double loss = step.loss();
  const char* outcome = verdict == StepVerdict::kSkipped ? "; it changes nothing" : "";
  const std::string samples =
      fmt::format("samples {} to {}{}", step.data.samples.begin, step.data.samples.end - 1, outcome);
  if (!std::isfinite(loss) || !std::isfinite(step.result.grad_norm)) {
    return fmt::format("step {}: the loss is {:.4g} and the gradient norm {:.4g}; {}", step.step(), loss,
                       step.result.grad_norm, samples);
  }
  return fmt::format("step {}: the loss of {:.4f} is a spike, {:.1f} standard deviations above those before; {}",
                     step.step(), loss, z_score, samples);
}

}  // namespace

Trainer::Trainer(const Config& config, Runtime& runtime, StartupTimer& timer)
    : config_(config),
      runtime_(runtime),
      timer_(timer),
      model_(config_, true, runtime),
      state_(model_.state()),
      results_(runtime.stream().device(), std::ssize(config.data.train)),
      checkpoints_(config_, runtime, state_),
      guard_(config.training),
      precision_guard_(config.precision_guard, runtime.stream().device()) {
  corruption_.emplace(config_, runtime, state_, checkpoints_);
  if (runtime.group().is_root()) log_decisions(model_.options(), model_.arena().buffer().bytes());
  timer_.mark("memory");
  runtime.group().agree_on_files("opening the data", [&] {
    if (!config.data.validation.empty()) validator_.emplace(config, runtime, model_.arena());
  });
  prepare_fp8_reports();
  if (config.precision_guard.every > 0 && !is_fp8(config.precision.linear) && runtime.group().is_root()) {
    log_warning("precision.guard.every is {}, but no linear is in FP8, so there is nothing to compare",
                config.precision_guard.every);
  }
  std::optional<Checkpoint> found = checkpoints_.open();
  timer_.mark("reading");
  runtime.group().agree_on_files("reading the weights", [&] {
    resume_or_initialize(found);
    data_report_->check_max_epochs();
  });
  publish_weights(state_, training_rank(runtime));
  runtime.stream().synchronize();
  timer_.mark("weights");
  checkpoints_.prepare(start_step_);
  if (has_precision_guard(config_)) reserve_snapshot();
  const bool continues = config.checkpoint.resume != "never";
  runtime.group().agree([&] {
    log_.emplace(config_, runtime, runtime.group().is_root(), continues ? std::optional(start_step_) : std::nullopt);
  });
  goodput_.emplace(config.logging.dir, continues && runtime.group().is_root(), start_steps_s_);
  timer_.mark("memory");
}

void Trainer::prepare_fp8_reports() {
  if (Fp8StatsTable* table = state_.model.fp8_stats()) {
    fp8_reporter_.emplace(config_, *table, runtime_.stream().device());
  } else if (!is_fp8(config_.precision.linear) && config_.logging.fp8_stats_every > 0 && runtime_.group().is_root()) {
    log_warning("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                config_.logging.fp8_stats_every);
  }
}

void Trainer::resume_or_initialize(std::optional<Checkpoint>& found) {
  if (found) {
    load(*found);
    timer_.mark("reading");
    if (runtime_.group().is_root()) log_info("resuming {} after step {}", found->path().string(), start_step_);
    return;
  }
  checkpoints_.started_from(nullptr);
  open_data(nullptr);
  timer_.mark("data");
  load_initial_weights(config_, state_.parameters, runtime_.stream(),
                       {runtime_.group().rank(), runtime_.group().size()});
  if (!config_.init_from.empty()) timer_.mark("reading");
}

void Trainer::open_data(const nlohmann::json* loader_state) {
  const LoaderOptions options{.global_batch_size = config_.training.global_batch_size,
                              .rank = runtime_.mesh().data().rank(),
                              .num_ranks = runtime_.mesh().data().size(),
                              .vocab_size = config_.model.vocab_size};
  data_report_.reset();
  feed_.reset();
  feed_.emplace(std::make_unique<Loader>(config_.data, options, loader_state));
  const int64_t steps_left = std::max<int64_t>(0, config_.training.steps - start_step_);
  data_report_.emplace(config_.data, feed_->loader(), steps_left * config_.training.global_batch_size);
  good_step_ = start_step_;
  good_loader_state_ = feed_->loader().state_json();
}

// Copies in host memory, which are as large as a checkpoint.
void Trainer::reserve_snapshot() {
  const int64_t bytes = StateSnapshot::bytes(state_);
  runtime_.group().agree([&] {
    const int64_t available = runtime_.available_host_bytes();
    CHECK_INPUT(bytes <= available,
                "precision.guard keeps a copy of the state in host memory, {:.1f} GiB a rank, but {:.1f} GiB are "
                "available; precision.guard.every=0 needs none",
                gib(bytes), gib(available));
    precision_guard_.snapshot().reserve(bytes);
  });
}

// All that a run goes on from.
void Trainer::load(Checkpoint& checkpoint) {
  check_same_model(checkpoint.model_config(), config_.model, checkpoint.path().string());
  const nlohmann::json& meta = checkpoint.meta();
  start_step_ = saved_step_ = checkpoint.step();
  start_tokens_ = meta.value("tokens", int64_t{0});
  const auto steps_s = meta.find("steps_s");
  start_steps_s_ = steps_s != meta.end() && steps_s->is_number() ? steps_s->get<double>() : 0;
  const bool has_loader = meta.contains("loader");  // an imported model has none and starts the data anew
  open_data(has_loader ? &meta.at("loader") : nullptr);
  timer_.mark("data");
  bfloat16_until_ = meta.value("bfloat16_until", int64_t{0});
  if (has_precision_guard(config_) && model_.in_bfloat16() != (start_step_ < bfloat16_until_)) switch_precision();
  load_state(checkpoint, state_, runtime_.stream());
  guard_.from_json(meta.value("guard", nlohmann::json()));
  checkpoints_.started_from(&checkpoint);
}

// So that algorithms are timed, plans built and modules loaded before the first step.
void Trainer::warm_up() {
  if (!runtime_.stream().is_cuda()) return;
  const auto warm_up = [&] {
    state_.model.warm_up(state_.batch.micro_batch(0), state_.batch.num_micro_batches() > 1);
    runtime_.stream().synchronize();
  };
  if (has_precision_guard(config_)) {
    with_snapshot(start_step_, [&] {
      switch_precision();
      warm_up();
      switch_precision();
    });
  }
  warm_up();
  timer_.mark("plans and tuning");
}

int64_t Trainer::tokens_per_step() const { return config_.training.global_batch_size * config_.data.seq_len; }

Trainer::Outcome Trainer::run(StopSignals& signals) {
  try {
    return train(signals);
  } catch (const std::exception& error) {
    if (runtime_.group().shares(error)) checkpoints_.complete_pending_save();
    throw;
  }
}

void Trainer::log_start() {
  if (!runtime_.group().is_root()) return;
  if (start_step_ >= config_.training.steps) {
    log_info("nothing to do: step {} of {} is reached", start_step_, config_.training.steps);
  } else {
    data_report_->log_start();
    log_info("started in {}", timer_.report());
  }
}

Trainer::Outcome Trainer::train(StopSignals& signals) {
  goodput_->add(Goodput::kStart, seconds_since_launch());
  const auto tuning = std::chrono::steady_clock::now();
  warm_up();
  goodput_->add(Goodput::kTuning, seconds_since(tuning));
  log_start();
  Stream& stream = runtime_.stream();
  const int64_t total_steps = config_.training.steps;
  bool save_postponed = false;
  results_.start(stream);
  for (int64_t step = start_step_ + 1; step <= total_steps; ++step) {
    if (model_.in_bfloat16() && step > bfloat16_until_) back_to_fp8(step, signals);
    const FedBatch& batch = feed_->next(runtime_.group(), results_);
    signals.at_step(step);
    state_.batch.upload(*batch.batch);
    if (runtime_.group().is_root()) data_report_->log_events(*batch.batch, step);
    train_step(step, batch);

    Request request = agreed_request(signals);
    if (!precision_guard_.comparing() && request != kUseBFloat16) feed_->forget();
    const bool last = step == total_steps;
    const bool validating = validator_ && request == kGoOn && config_.validation.every > 0 &&
                            (last || step % config_.validation.every == 0);
    const bool due = last || save_postponed || checkpoints_.due(step);
    const bool comparing = has_precision_guard(config_) && !model_.in_bfloat16() && precision_guard_.due(step) && !last;
    const bool waiting = validating || due || comparing || request != kGoOn;
    // A step that is saved or validated is waited for, so that weights spoiled by a bad step are never saved, and the
    // first one, whose line says that the run is under way; on a GPU any other is read when the next one is queued.
    const bool first = step == start_step_ + 1;
    const int64_t in_flight = stream.is_cuda() && !waiting && !first ? 1 : 0;
    while (results_.pending() > in_flight) {
      const FinishedStep finished = pop_step();
      const bool current = results_.pending() == 0;
      finish_step(finished, current && (last || request == kStop), current && validating, signals);
    }
    // A signal, or what was just seen of a step.
    if (validating || due || comparing) request = std::max(request, agreed_request(signals));
    if (goes_back(request)) {
      go_back(request);
      step = start_step_;
      continue;
    }
    checkpoints_.poll();
    // After steps that were passed over the weights are those of a checkpoint before them; of a comparison it is not
    // known yet what they are worth.
    const bool stopping = request == kStop;
    save_postponed = due && !last && !stopping && (guard_.skipped_in_a_row() > 0 || precision_guard_.comparing());
    const bool saving = (due && !save_postponed) || stopping;
    if (saving && corruption_->may_save(step)) save(step, loader_state_, last || stopping);
    if (waiting) results_.start(stream);
    if (comparing && !stopping) measure_in_bfloat16(step);
    if (stopping) {
      end_run();
      return Outcome::kStopped;
    }
  }
  end_run();
  return Outcome::kDone;
}

void Trainer::end_run() {
  const auto saving = std::chrono::steady_clock::now();
  checkpoints_.finish();
  goodput_->add(Goodput::kSaving, seconds_since(saving));
  if (!runtime_.group().is_root()) return;
  log_->end();
  log_line(LogLevel::kInfo, goodput_->report());
  write_goodput(true);
}

// Documents may end anywhere, so with their mask the ranks count the targets that the loss has.
std::vector<int64_t> Trainer::targets_of_step(const Batch& batch) {
  const int64_t seq_len = config_.data.seq_len;
  std::vector<int64_t> targets(batch.dataset_samples.size());
  if (!config_.data.document_mask) {
    for (size_t d = 0; d < targets.size(); ++d) targets[d] = batch.dataset_samples[d] * seq_len;
    return targets;
  }
  for (size_t row = 0; row < batch.dataset.size(); ++row) {
    const auto length = static_cast<size_t>(seq_len);
    targets[static_cast<size_t>(batch.dataset[row])] +=
        count_targets(std::span(batch.targets).subspan(row * length, length));
  }
  for (int64_t& sum : targets) sum = static_cast<int64_t>(runtime_.sum_over_samples(static_cast<double>(sum)));
  return targets;
}

TrainingStep Trainer::training_step_of(int64_t step, const StepData& data) const {
  return {.number = step,
          .lr = learning_rate(config_.optimizer, step, config_.training.steps),
          .targets = std::accumulate(data.targets.begin(), data.targets.end(), int64_t{0})};
}

// Queues a step and the copy of its results to the host. The statistics' copy is the first of them, so that it is done
// when the step's result is popped.
void Trainer::train_step(int64_t step, const FedBatch& fed) {
  Stream& stream = runtime_.stream();
  StepData data{.targets = targets_of_step(*fed.batch),
                .epochs = data_report_->epochs(fed.batch->state_after),
                .samples = fed.samples,
                .loader_state = fed.loader_state,
                .data_ms = fed.data_ms,
                .data_lost_ms = fed.data_lost_ms};
  recent_samples_.emplace_back(step, data.samples);
  if (recent_samples_.size() > kRecentSteps) recent_samples_.pop_front();
  TrainingStep training = training_step_of(step, data);
  training.loss_limit = guard_.loss_limit(step);
  training.update_after = &checkpoints_.staged();
  corruption_->begin_step(training, *fed.batch);
  if (fp8_due(step)) fp8_reporter_->begin(stream);
  training_step(state_, training, training_rank(runtime_));
  corruption_->end_step(step);
  step_data_.push_back(std::move(data));
  if (fp8_due(step)) fp8_reporter_->end(runtime_.mesh().world(), stream);
  results_.push(step, {state_.loss, state_.optimizer.grad_sum_of_squares(), state_.skip}, stream);
}

// All ranks do the same at the same step, whichever of them got the signal. Spikes are told by rank 0, and by its clock
// when a checkpoint is due.
Trainer::Request Trainer::agreed_request(const StopSignals& signals) {
  const Request wish = signals.requested() ? kStop : std::max(wanted_, checkpoints_.has_time_passed() ? kSave : kGoOn);
  const Request request = runtime_.group().all_reduce_max(wish);
  if (request != kSave) return request;
  checkpoints_.set_time_due();
  return kGoOn;
}

FinishedStep Trainer::pop_step() {
  FinishedStep step{.result = results_.pop().value(), .data = std::move(step_data_.front())};
  step_data_.pop_front();
  const StepResult& result = step.result;
  log_->count(result.step_ms, step.data.data_ms);
  const double lost_ms = std::min(step.data.data_lost_ms, result.step_ms);
  goodput_->add(result.skipped ? Goodput::kSkipped : Goodput::kSteps, (result.step_ms - lost_ms) / 1e3);
  goodput_->add(Goodput::kData, lost_ms / 1e3);
  goodput_->add(Goodput::kSaving, std::max(result.pause_ms / 1e3 - std::exchange(validation_s_, 0), 0.0));
  corruption_->finish_step(step.step());
  judge(step);
  return step;
}

void Trainer::judge(const FinishedStep& step) {
  const double loss = step.loss();
  const double z = guard_.z_score(step.step(), loss);
  const StepVerdict verdict = guard_.judge(step.step(), loss, step.result.skipped);
  loader_state_ = step.data.loader_state;
  if (!step.result.skipped) {
    good_step_ = step.step();
    good_loader_state_ = loader_state_;
  }
  if (precision_guard_.comparing()) compare_with_bfloat16(step.step(), loss);
  if (verdict == StepVerdict::kGood) return;
  if (runtime_.group().is_root()) log_line(LogLevel::kWarning, describe_bad_step(step, verdict, z));
  const bool goes_back = verdict == StepVerdict::kSpike && config_.training.on_loss_spike == OnLossSpike::kRollback;
  if (goes_back && runtime_.group().is_root()) wanted_ = std::max(wanted_, kRollBack + step.step());
}

void Trainer::finish_step(const FinishedStep& step, bool always, bool validating, const StopSignals& signals) {
  std::optional<ValidationLoss> validation;
  if (validating) {
    const auto begin = std::chrono::steady_clock::now();
    validation = validator_->loss(state_.model, [&] { return should_stop(signals); });
    validation_s_ = seconds_since(begin);
    goodput_->add(Goodput::kValidation, validation_s_);
  }
  const bool due = config_.logging.every > 0 && step.step() % config_.logging.every == 0;
  const bool first = step.step() == start_step_ + 1;
  if (due || first || always || validating || step.result.skipped || precision_gap_ || fp8_due(step.step()))
    report(step, validation);
  if (guard_.has_given_up()) give_up(step.step());
}

// The steps behind this one may have gone well: then the run goes on. Else the weights are those of the last good step,
// whose checkpoint is saved.
void Trainer::give_up(int64_t step) {
  while (results_.pending() > 0 && guard_.has_given_up()) {
    const FinishedStep finished = pop_step();
    step = finished.step();
    report(finished, {});
  }
  if (!guard_.has_given_up()) return;
  checkpoints_.complete_pending_save();
  if (good_step_ > saved_step_ && weights_are_finite() && corruption_->may_save(good_step_)) {
    save(good_step_, good_loader_state_, false);
    checkpoints_.complete_pending_save();
  }
  if (runtime_.group().is_root()) write_goodput(true);
  runtime_.group().agree([&] {
    throw Error(
        fmt::format("the loss or the gradient norm of {} is not finite or a spike, more than "
                    "training.max_skipped_steps in a row; the last checkpoint is {}",
                    describe_steps(good_step_ + 1, step), checkpoints_.last()));
  });
}

bool Trainer::weights_are_finite() {
  Stream& stream = runtime_.stream();
  const Tensor& sum = state_.optimizer.grad_sum_of_squares();  // nobody needs it any more
  float squares = 0;
  stream.zero(sum);
  sum_of_squares({.out = sum, .x = state_.parameters.master()}, stream);
  stream.copy(&squares, sum.raw(), sizeof(squares));
  stream.synchronize();
  return runtime_.group().all_reduce_max(std::isfinite(squares) ? 0 : 1) == 0;
}

bool Trainer::goes_back(Request request) {
  if (request == kGoOn || request == kStop) return false;
  if (request == kUseBFloat16 || checkpoints_.last_path()) return true;
  wanted_ = kGoOn;
  if (runtime_.group().is_root()) log_warning("there is no checkpoint to go back to from step {}", request - kRollBack);
  return false;
}

void Trainer::go_back(Request request) {
  const auto begin = std::chrono::steady_clock::now();
  while (results_.pending() > 0) {
    if (fp8_due(pop_step().step())) fp8_reporter_->pop();
  }
  wanted_ = kGoOn;
  if (request == kUseBFloat16) {
    go_on_in_bfloat16();
  } else {
    roll_back(request - kRollBack);
  }
  corruption_.emplace(config_, runtime_, state_, checkpoints_);  // what of it was pending is of steps that are no more
  runtime_.stream().synchronize();
  goodput_->set_back(start_steps_s_);
  goodput_->add(Goodput::kRecovery, seconds_since(begin));
  results_.start_anew(runtime_.stream());
}

void Trainer::roll_back(int64_t spike) {
  checkpoints_.complete_pending_save();
  Checkpoint checkpoint = checkpoints_.open_last();
  rollbacks_ = checkpoint.step() == start_step_ ? rollbacks_ + 1 : 1;
  runtime_.group().agree([&] {
    CHECK(rollbacks_ <= std::max<int64_t>(config_.training.max_skipped_steps, 1),
          "the loss of step {} is a spike after {} rollbacks to {}, the last checkpoint", spike, rollbacks_ - 1,
          checkpoint.path().string());
  });
  const auto found = std::find_if(recent_samples_.begin(), recent_samples_.end(),
                                  [&](const auto& recent) { return recent.first == spike; });
  CHECK(found != recent_samples_.end(), "the samples of step {} are not known", spike);
  const SampleRange samples = found->second;
  config_.data.skip.push_back(samples);
  runtime_.group().agree_on_files("rolling back", [&] { load(checkpoint); });
  publish_weights(state_, training_rank(runtime_));
  precision_guard_.end();
  if (!runtime_.group().is_root()) return;
  log_warning("back to {} after step {}; samples {} to {} are passed over", checkpoint.path().string(), start_step_,
              samples.begin, samples.end - 1);
}

void Trainer::report(const FinishedStep& step, const std::optional<ValidationLoss>& validation) {
  StepContext context{.tokens = tokens_seen(step.step()),
                      .skipped_steps = guard_.skipped(),
                      .goodput = goodput_->share(),
                      .loss_by_dataset = data_report_->means(step.result.loss_sums, step.data.targets)};
  if (validation) {
    context.validation_loss = validation->loss;
    const auto& datasets = validator_->datasets();
    for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
      context.validation_loss_by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
    }
  }
  if (fp8_due(step.step())) context.fp8 = fp8_reporter_->pop();
  context.precision_gap = std::exchange(precision_gap_, std::nullopt);
  log_->report(step, std::move(context));
  if (runtime_.group().is_root()) write_goodput(false);
}

void Trainer::save(int64_t step, const nlohmann::json& loader_state, bool final) {
  saved_step_ = step;
  checkpoints_.save(step,
                    {{"config", to_json(config_)},
                     {"loader", loader_state},
                     {"tokens", tokens_seen(step)},
                     {"steps_s", goodput_->steps_seconds()},
                     {"guard", guard_.to_json()},
                     {"bfloat16_until", bfloat16_until_}},
                    final ? RunCheckpoints::Save::kFinal : RunCheckpoints::Save::kOneOfMany);
}

// What refers to parts of the old state is made anew.
void Trainer::switch_precision() {
  checkpoints_.staged().wait(runtime_.stream());
  fp8_reporter_.reset();
  corruption_.reset();
  model_.use_bfloat16(!model_.in_bfloat16(), runtime_);
  prepare_fp8_reports();
  corruption_.emplace(config_, runtime_, state_, checkpoints_);
}

// The state survives what `work` does to it.
void Trainer::with_snapshot(int64_t steps_done, const std::function<void()>& work) {
  precision_guard_.snapshot().take(state_, runtime_.stream());
  work();
  restore_snapshot(steps_done);
}

void Trainer::restore_snapshot(int64_t steps_done) {
  checkpoints_.staged().wait(runtime_.stream());
  precision_guard_.snapshot().restore(state_, steps_done, runtime_.stream());
  publish_weights(state_, training_rank(runtime_));
}

// Takes the next steps in bfloat16, and then everything back: the run takes them in FP8.
void Trainer::measure_in_bfloat16(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  before_comparison_ = {.tokens = tokens_seen(step),
                        .steps_s = goodput_->steps_seconds(),
                        .loader_state = loader_state_,
                        .guard = guard_.to_json()};
  std::vector<double> losses;
  feed_->record();
  with_snapshot(step, [&] {
    switch_precision();
    restore_snapshot(step);
    const int64_t last = std::min(step + precision_guard_.steps(), config_.training.steps);
    for (int64_t s = step + 1; s <= last; ++s) losses.push_back(loss_of_step(s));
    switch_precision();
  });
  feed_->replay();
  precision_guard_.begin(step, losses);
  runtime_.stream().synchronize();
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  results_.start_anew(runtime_.stream());
}

// Of a step that is taken at once, and reported nowhere.
double Trainer::loss_of_step(int64_t step) {
  const FedBatch& fed = feed_->next(runtime_.group(), results_);
  state_.batch.upload(*fed.batch);
  FinishedStep taken;
  taken.result.step = step;
  taken.data.targets = targets_of_step(*fed.batch);
  training_step(state_, training_step_of(step, taken.data), training_rank(runtime_));
  std::vector<float> sums(static_cast<size_t>(state_.loss.numel()));
  runtime_.stream().copy(sums.data(), state_.loss.raw(), state_.loss.bytes());
  runtime_.stream().synchronize();
  taken.result.loss_sums.assign(sums.begin(), sums.end());
  return taken.loss();
}

void Trainer::compare_with_bfloat16(int64_t step, double loss) {
  precision_gap_ = precision_guard_.compare(step, loss);
  if (!precision_gap_) return;
  precision_guard_.end();
  if (!runtime_.group().is_root()) return;
  const std::string found =
      fmt::format("precision.guard: the losses of {} in FP8 and in bfloat16 differ by {:.4g} of themselves",
                  describe_steps(precision_guard_.first_step() + 1, step), *precision_gap_);
  if (precision_guard_.tolerates(*precision_gap_)) return log_info("{}", found);
  log_warning("{}, more than {}", found, config_.precision_guard.tolerance);
  if (config_.precision_guard.action == OnPrecisionGap::kBFloat16) wanted_ = kUseBFloat16;
}

// From the state before the comparison, over the same samples.
void Trainer::go_on_in_bfloat16() {
  start_step_ = precision_guard_.first_step();
  start_tokens_ = before_comparison_.tokens;
  start_steps_s_ = before_comparison_.steps_s;
  good_step_ = start_step_;
  good_loader_state_ = before_comparison_.loader_state;
  guard_.from_json(before_comparison_.guard);
  bfloat16_until_ = start_step_ + config_.precision_guard.fallback_steps;
  feed_->replay();
  switch_precision();
  restore_snapshot(start_step_);
  if (!runtime_.group().is_root()) return;
  log_warning("back to step {} and on in bfloat16 up to step {}", start_step_, bfloat16_until_);
}

void Trainer::back_to_fp8(int64_t step, const StopSignals& signals) {
  while (results_.pending() > 0) finish_step(pop_step(), false, false, signals);
  const auto begin = std::chrono::steady_clock::now();
  with_snapshot(step - 1, [&] { switch_precision(); });
  runtime_.stream().synchronize();
  goodput_->add(Goodput::kChecks, seconds_since(begin));
  results_.start_anew(runtime_.stream());
  if (runtime_.group().is_root()) log_info("from step {} on in {} again", step, precision_name(config_.precision));
}

// It is worth no run.
void Trainer::write_goodput(bool end) {
  try {
    goodput_->write(end);
  } catch (const std::exception& error) {
    if (!std::exchange(goodput_fails_, true)) log_warning("{}", error.what());
  }
}

}  // namespace octavo
