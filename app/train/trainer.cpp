#include "app/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "app/memory/training_options.h"
#include "app/run/weights.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

template <typename T>
T sum_of(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

std::string by_name(const NumbersByName& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, value);
  return text;
}

}  // namespace

Trainer::Trainer(const Config& config, Runtime& runtime, StartupTimer& timer)
    : config_(config),
      runtime_(runtime),
      timer_(timer),
      model_(config_, true, runtime),
      state_(model_.state()),
      results_(runtime.stream().device(), std::ssize(config.data.train)),
      checkpoints_(config_, runtime, state_) {
  if (runtime.group().is_root()) log_decisions(model_.options(), model_.arena().buffer().bytes());
  timer_.mark("memory");
  runtime.group().agree_on_files("opening the data", [&] {
    if (!config.data.validation.empty()) validator_.emplace(config, runtime, model_.arena());
  });
  prepare_fp8_reports();
  std::optional<Checkpoint> found = checkpoints_.open();
  timer_.mark("reading");
  runtime.group().agree_on_files("reading the weights", [&] {
    resume_or_initialize(found);
    const int64_t steps = std::max<int64_t>(0, config_.training.steps - start_step_);
    data_report_.emplace(config_.data, *loader_, steps * config_.training.global_batch_size);
    data_report_->check_max_epochs();
  });
  publish_weights(state_, training_rank(runtime));
  runtime.stream().synchronize();
  timer_.mark("weights");
  checkpoints_.prepare(start_step_);
  runtime.group().agree([&] {
    if (runtime.group().is_root()) metrics_.emplace(config.logging.dir, config.logging.tensorboard);
  });
  timer_.mark("memory");
}

void Trainer::prepare_fp8_reports() {
  if (Fp8StatsTable* table = state_.model.fp8_stats()) {
    fp8_reporter_.emplace(config_, *table, runtime_.stream().device());
  } else if (config_.logging.fp8_stats_every > 0 && runtime_.group().is_root()) {
    log_warning("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                config_.logging.fp8_stats_every);
  }
}

void Trainer::resume_or_initialize(std::optional<Checkpoint>& found) {
  Stream& stream = runtime_.stream();
  const ReaderRank reader{runtime_.group().rank(), runtime_.group().size()};
  const LoaderOptions options{.global_batch_size = config_.training.global_batch_size,
                              .rank = runtime_.mesh().data().rank(),
                              .num_ranks = runtime_.mesh().data().size(),
                              .vocab_size = config_.model.vocab_size};
  if (!found) {
    checkpoints_.started_from(nullptr);
    loader_ = std::make_unique<Loader>(config_.data, options);
    timer_.mark("data");
    load_initial_weights(config_, state_.parameters, stream, reader);
    if (!config_.init_from.empty()) timer_.mark("reading");
    return;
  }
  Checkpoint& checkpoint = *found;
  check_same_model(checkpoint.model_config(), config_.model, checkpoint.path().string());
  const nlohmann::json& meta = checkpoint.meta();
  const bool has_loader = meta.contains("loader");  // an imported model has none and starts the data anew
  loader_ = std::make_unique<Loader>(config_.data, options, has_loader ? &meta.at("loader") : nullptr);
  timer_.mark("data");
  load_state(checkpoint, state_, stream);
  checkpoints_.started_from(&checkpoint);
  start_step_ = checkpoint.step();
  start_tokens_ = meta.value("tokens", int64_t{0});
  timer_.mark("reading");
  if (runtime_.group().is_root()) log_info("resuming {} after step {}", checkpoint.path().string(), start_step_);
}

// So that algorithms are timed, plans built and modules loaded before the first step.
void Trainer::warm_up() {
  if (!runtime_.stream().is_cuda()) return;
  state_.model.warm_up(state_.batch.micro_batch(0), state_.batch.num_micro_batches() > 1);
  runtime_.stream().synchronize();
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

Trainer::Outcome Trainer::train(StopSignals& signals) {
  warm_up();
  Stream& stream = runtime_.stream();
  const int64_t total_steps = config_.training.steps;
  if (runtime_.group().is_root()) {
    if (start_step_ >= total_steps) {
      log_info("nothing to do: step {} of {} is reached", start_step_, total_steps);
    } else {
      data_report_->log_start();
      log_info("started in {}", timer_.report());
    }
  }
  results_.start(stream);
  for (int64_t step = start_step_ + 1; step <= total_steps; ++step) {
    const Batch& batch = next_batch();
    signals.at_step(step);
    interval_.data_ms += loader_->data_ms();
    state_.batch.upload(batch);
    if (runtime_.group().is_root()) data_report_->log_events(batch, step);
    train_step(step, batch);

    const bool last = step == total_steps;
    bool stopping = should_stop(signals);
    const bool validating =
        validator_ && !stopping && config_.validation.every > 0 && (last || step % config_.validation.every == 0);
    bool saving = last || stopping || checkpoints_.due(step);
    // A step that is saved or validated is waited for, so that weights spoiled by a bad step are never saved, and the
    // first one, whose line says that the run is under way; on a GPU any other is read when the next one is queued.
    const bool first = step == start_step_ + 1;
    const int64_t in_flight = stream.is_cuda() && !validating && !saving && !first ? 1 : 0;
    while (results_.pending() > in_flight) {
      const bool current = results_.pending() == 1;
      finish_step(current && (last || stopping), current && validating, signals);
    }
    if (validating && should_stop(signals)) stopping = saving = true;
    checkpoints_.poll();
    if (saving) save(step, last || stopping);
    if (saving || validating) results_.start(stream);
    if (stopping) {
      end_run();
      return Outcome::kStopped;
    }
  }
  end_run();
  return Outcome::kDone;
}

void Trainer::end_run() {
  checkpoints_.finish();
  runtime_.group().agree([&] { rethrow_kept_failure(); });
}

// Where all ranks learn of what one of them has met since the step before, a bad token among it.
const Batch& Trainer::next_batch() {
  const Batch* batch = nullptr;
  runtime_.group().agree([&] {
    rethrow_kept_failure();
    batch = &loader_->next();
  });
  return *batch;
}

void Trainer::keep_failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void Trainer::rethrow_kept_failure() const {
  if (failure_) std::rethrow_exception(failure_);
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

// Queues a step and the copy of its results to the host. The statistics' copy is the first of them, so that it is done
// when the step's result is popped.
void Trainer::train_step(int64_t step, const Batch& batch) {
  Stream& stream = runtime_.stream();
  const double lr = learning_rate(config_.optimizer, step, config_.training.steps);
  if (fp8_due(step)) fp8_reporter_->begin(stream);
  step_data_.push_back({targets_of_step(batch), data_report_->epochs(batch.state_after)});
  training_step(
      state_,
      {.number = step, .lr = lr, .targets = sum_of(step_data_.back().targets), .update_after = &checkpoints_.staged()},
      training_rank(runtime_));
  if (fp8_due(step)) fp8_reporter_->end(runtime_.mesh().world(), stream);
  results_.push(step, state_.loss, state_.optimizer.grad_sum_of_squares(), stream);
}

// All ranks stop at the same step, whichever of them got the signal, and save when rank 0's clock says so.
bool Trainer::should_stop(const StopSignals& signals) {
  const int64_t wish = signals.requested() ? 2 : checkpoints_.has_time_passed() ? 1 : 0;
  const int64_t wished = runtime_.group().all_reduce_max(wish);
  if (wished == 1) checkpoints_.set_time_due();
  return wished == 2;
}

void Trainer::finish_step(bool always, bool validating, const StopSignals& signals) {
  const std::optional<StepResult> result = results_.pop();
  if (!result) return;
  const StepData data = std::move(step_data_.front());
  step_data_.pop_front();
  ++interval_.steps;
  interval_.milliseconds += result->step_ms;
  const bool finite = std::isfinite(sum_of(result->loss_sums)) && std::isfinite(result->grad_norm);
  std::optional<ValidationLoss> validation;
  if (validating && finite) validation = validator_->loss(state_.model, [&] { return should_stop(signals); });
  const bool due = config_.logging.every > 0 && result->step % config_.logging.every == 0;
  const bool first = result->step == start_step_ + 1;
  if (due || first || always || validating || !finite || fp8_due(result->step)) report(*result, data, validation);
  if (finite) return;
  checkpoints_.complete_pending_save();  // so that the one that is named is there
  runtime_.group().agree([&] {
    throw Error(fmt::format("the loss or the gradient norm of step {} is not finite; the last checkpoint is {}",
                            result->step, checkpoints_.last()));
  });
}

void Trainer::report(const StepResult& result, const StepData& data, const std::optional<ValidationLoss>& validation) {
  const double seconds = interval_.milliseconds / 1e3;
  const double steps = static_cast<double>(interval_.steps);
  StepMetrics m;
  m.step = result.step;
  m.total_steps = config_.training.steps;
  m.loss = sum_of(result.loss_sums) / static_cast<double>(std::max<int64_t>(sum_of(data.targets), 1));
  m.grad_norm = result.grad_norm;
  m.lr = learning_rate(config_.optimizer, result.step, m.total_steps);
  m.tokens = tokens_seen(result.step);
  m.wps = steps * static_cast<double>(tokens_per_step()) / seconds / runtime_.group().size();
  const double flops = m.wps * config_.model.flops_per_token(config_.data.seq_len);
  if (runtime_.stream().is_cuda()) m.mfu = flops / kPeakFlops;
  m.tflops = flops / 1e12;
  m.step_ms = 1e3 * seconds / steps;
  m.data_ms = interval_.data_ms / steps;
  m.memory_gib = runtime_.memory_gib();
  m.loss_by_dataset = data_report_->means(result.loss_sums, data.targets);
  m.epochs = data.epochs;
  if (validation) {
    m.validation_loss = validation->loss;
    const auto& datasets = validator_->datasets();
    for (size_t d = 0; datasets.size() > 1 && d < datasets.size(); ++d) {
      m.validation_loss_by_dataset.emplace_back(datasets[d].name, validation->by_dataset[d].loss);
    }
  }
  if (fp8_due(result.step)) m.fp8 = fp8_reporter_->pop();
  interval_ = {};
  if (!metrics_) return;
  log_line(LogLevel::kInfo, console_line(m, static_cast<double>(m.total_steps - m.step) * seconds / steps));
  if (!m.validation_loss_by_dataset.empty()) log_info("validation_loss of {}", by_name(m.validation_loss_by_dataset));
  keep_failure([&] { metrics_->write(m); });
  if (const std::optional<std::string> warning = fp8_warning(m.step, m.fp8)) log_line(LogLevel::kWarning, *warning);
}

void Trainer::save(int64_t step, bool final) {
  const nlohmann::json meta = {
      {"config", to_json(config_)}, {"loader", loader_->state_json()}, {"tokens", tokens_seen(step)}};
  checkpoints_.save(step, meta, final ? RunCheckpoints::Save::kFinal : RunCheckpoints::Save::kOneOfMany);
}

}  // namespace octavo
