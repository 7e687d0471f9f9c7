#include "app/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "app/config/stages.h"
#include "app/memory/plan_memory.h"
#include "app/process/events.h"
#include "app/process/same_files.h"
#include "app/run/weights.h"
#include "app/train/resume.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/profiler.h"
#include "kernels/math/reduce.h"

namespace octavo {

namespace {

constexpr size_t kRecentSteps = 8;  // more than are pending

}  // namespace

TrainingRun::TrainingRun(const Config& config, Runtime& runtime, StartupTimer& timer, RunCheckpoints& checkpoints,
                         std::optional<Checkpoint> resumed, const std::function<void(Arena&)>& with_validation)
    : config_(config),
      runtime_(runtime),
      timer_(timer),
      model_(config_, true, runtime),
      state_(model_.state()),
      results_(runtime.stream().device(), std::ssize(config.data.train)),
      checkpoints_(checkpoints) {
  corruption_.emplace(config_, runtime, state_, checkpoints_);
  timer_.mark("memory");
  runtime.group().agree_on_files("opening the data", [&] { with_validation(model_.arena()); });
  prepare_fp8_reports();
  const std::unique_ptr<WeightSource> initial =
      resumed ? nullptr : open_same_weights(config_.init_from, runtime.group());
  runtime.group().agree_on_files("reading the weights", [&] {
    resume_or_initialize(resumed, initial.get());
    data_report_->check_max_epochs();
  });
  publish_weights(state_);
  runtime.stream().synchronize();
  timer_.mark("weights");
  checkpoints_.prepare(state_, start_.step, config_.training.steps);
}

void TrainingRun::prepare_fp8_reports() {
  if (Fp8StatsTable* table = state_.model.fp8_stats()) {
    fp8_reporter_.emplace(config_, *table, runtime_.stream().device());
  } else if (!is_fp8(config_.precision.linear) && config_.logging.fp8_stats_every > 0 && runtime_.group().is_root()) {
    log_warning("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                config_.logging.fp8_stats_every);
  }
}

void TrainingRun::resume_or_initialize(std::optional<Checkpoint>& resumed, WeightSource* initial) {
  if (resumed) {
    check_may_resume(config_, *resumed, runtime_.group().is_root());
    load(*resumed);
    timer_.mark("reading");
    // On a line of its own, not of the start screen: nothing breaks or shortens it for those who look for it.
    if (runtime_.group().is_root())
      log_event(EventKind::kRestart, start_.step, "resuming {} after step {}", resumed->path().string(), start_.step);
    return;
  }
  checkpoints_.started_from(nullptr);
  open_data(nullptr);
  timer_.mark("data");
  load_initial_weights(config_, initial, state_.parameters, runtime_.stream());
  state_.optimizer.begin(runtime_.stream());
  if (!config_.init_from.empty()) timer_.mark("reading");
}

void TrainingRun::open_data(const nlohmann::json* loader_state) {
  LoaderOptions options = loader_options(config_, start_.step);
  options.rank = runtime_.mesh().data_rank();
  options.num_ranks = runtime_.mesh().shape().data();
  options.context = runtime_.mesh().context_rank();
  data_report_.reset();
  loader_.reset();
  loader_ = open_loader(config_, options, loader_state, runtime_.group().is_root());
  next_sample_ = loader_->state().next_sample;
  data_report_.emplace(config_.data, *loader_, samples_left(config_, start_.step));
  start_.loader_state = loader_->state_json();
}

// All that a run goes on from.
void TrainingRun::load(Checkpoint& checkpoint) {
  check_same_model(checkpoint.model_config(), config_.model, checkpoint.path().string());
  const nlohmann::json& meta = checkpoint.meta();
  const auto steps_s = meta.find("steps_s");
  start_ = {.step = checkpoint.step(),
            .tokens = meta.value("tokens", int64_t{0}),
            .steps_s = steps_s != meta.end() && steps_s->is_number() ? steps_s->get<double>() : 0,
            .guard = meta.value("guard", nlohmann::json()),
            .bfloat16_until = meta.value("bfloat16_until", int64_t{0})};
  const bool has_loader = meta.contains("loader");  // an imported model has none and starts the data anew
  open_data(has_loader ? &meta.at("loader") : nullptr);
  timer_.mark("data");
  if (has_precision_guard(config_) && in_bfloat16() != (start_.step < start_.bfloat16_until)) switch_precision();
  load_state(checkpoint, state_, runtime_.stream());
  if (config_.optimizer.ema_decay > 0 && !checkpoint.has_average() && runtime_.group().is_root()) {
    log_info("{} has no average of the weights, so it begins with these", checkpoint.path().string());
  }
  checkpoints_.started_from(&checkpoint);
}

void TrainingRun::warm_up() {
  state_.model.warm_up(state_.batch.micro_batch(0), state_.batch.num_micro_batches() > 1);
  state_.optimizer.warm_up(runtime_.stream());
  runtime_.stream().synchronize();
}

// Documents may end anywhere, so with their mask the ranks count the targets that the loss has.
std::vector<int64_t> TrainingRun::targets_of_step(const Batch& batch) {
  const int64_t seq_len = config_.data.seq_len;
  std::vector<int64_t> targets(batch.dataset_samples.size());
  if (!config_.data.document_mask) {
    for (size_t d = 0; d < targets.size(); ++d) targets[d] = batch.dataset_samples[d] * seq_len;
    return targets;
  }
  for (size_t row = 0; row < batch.dataset.size(); ++row) {
    const auto length = static_cast<size_t>(runtime_.mesh().context_rank().share(seq_len));
    targets[static_cast<size_t>(batch.dataset[row])] +=
        count_targets(std::span(batch.targets).subspan(row * length, length));
  }
  for (int64_t& sum : targets) sum = static_cast<int64_t>(runtime_.sum_over_tokens(static_cast<double>(sum)));
  return targets;
}

TrainingStep TrainingRun::training_step_of(int64_t step, const StepData& data) const {
  return {.number = step,
          .lr = config_.learning_rate(step),
          .targets = std::accumulate(data.targets.begin(), data.targets.end(), int64_t{0})};
}

const FedBatch& TrainingRun::next_batch() {
  const ProfilerRange range(runtime_.stream(), "next batch", Profiler::Kind::kHostRange);
  runtime_.group().agree([&] { fed_.batch = &loader_->next(); });
  fed_.samples = {next_sample_, fed_.batch->state_after.next_sample};
  fed_.loader_state = loader_->state_json();
  fed_.data_ms = loader_->data_ms();
  fed_.data_lost_ms = results_.is_idle() ? fed_.data_ms : 0;
  next_sample_ = fed_.samples.end;
  return fed_;
}

void TrainingRun::log_events(const Batch& batch, int64_t step) {
  data_report_->log_events(batch, step);
  const BatchSchedule batches = config_.training.batch_schedule();
  const int64_t size = batches.batch_size(step);
  if (step > start_.step + 1 && size != batches.batch_size(step - 1))
    log_info("training.batch_size_warmup: {} sequences a step from step {} on", size, step);
}

void TrainingRun::warn_of_no_targets(int64_t step, SampleRange samples) {
  if (!runtime_.group().is_root() || std::exchange(warned_of_no_targets_, true)) return;
  log_event(
      EventKind::kWarning, step,
      "step {}: all targets of samples {} to {} are masked (data.document_mask), so its loss and gradients are 0 and "
      "only momentum and weight decay change the weights; more such steps are not reported",
      step, samples.begin, samples.end - 1);
}

// The statistics' copy is the first of those to the host, so that it is done when the step's result is popped.
void TrainingRun::queue_step(int64_t step, const FedBatch& fed, float loss_limit) {
  Stream& stream = runtime_.stream();
  const ProfilerRange range(stream, "queue step", Profiler::Kind::kHostRange);
  state_.batch.upload(*fed.batch);
  if (runtime_.group().is_root()) log_events(*fed.batch, step);
  StepData data{.targets = targets_of_step(*fed.batch),
                .epochs = data_report_->epochs(fed.batch->state_after),
                .samples = fed.samples,
                .loader_state = fed.loader_state,
                .data_ms = fed.data_ms,
                .data_lost_ms = fed.data_lost_ms};
  recent_samples_.emplace_back(step, data.samples);
  if (recent_samples_.size() > kRecentSteps) recent_samples_.pop_front();
  TrainingStep training = training_step_of(step, data);
  if (training.targets == 0) warn_of_no_targets(step, data.samples);
  training.loss_limit = loss_limit;
  training.update_after = &checkpoints_.staged();
  corruption_->begin_step(training);
  if (fp8_due(step)) fp8_reporter_->begin(stream);
  training_step(state_, training);
  corruption_->end_step(step);
  step_data_.push_back(std::move(data));
  if (fp8_due(step)) fp8_reporter_->end(runtime_.mesh().world(), stream);
  results_.push(step, {state_.loss, state_.optimizer.grad_sum_of_squares(), state_.skip, state_.z_loss}, stream);
}

FinishedStep TrainingRun::pop_step() {
  const ProfilerRange range(runtime_.stream(), "wait for the result", Profiler::Kind::kHostRange);
  FinishedStep step{.result = results_.pop().value(), .data = std::move(step_data_.front())};
  step_data_.pop_front();
  corruption_->finish_step(step.step());
  step.row = row_of(step);
  return step;
}

MetricRow TrainingRun::row_of(const FinishedStep& step) const {
  MetricRow row(step.step(), config_.total_steps());
  row.set("loss", step.loss());
  row.set("z_loss", step.z_loss());
  row.set("grad_norm", step.result.grad_norm);
  row.set("lr", config_.learning_rate(row.step));
  if (config_.stage.number > 0) row.set("stage", config_.stage.number);
  row.set("tokens", tokens_seen(row.step));
  row.set("step_ms", step.result.step_ms);
  row.set("data_ms", step.data.data_ms);
  row.set("loss_by_dataset", data_report_->means(step.result.loss_sums, step.data.targets));
  row.set("epochs", step.data.epochs);
  return row;
}

double TrainingRun::loss_of_step(int64_t step, const FedBatch& fed) {
  state_.batch.upload(*fed.batch);
  FinishedStep taken;
  taken.result.step = step;
  taken.data.targets = targets_of_step(*fed.batch);
  training_step(state_, training_step_of(step, taken.data));
  std::vector<float> sums(static_cast<size_t>(state_.loss.numel()));
  runtime_.stream().copy(sums.data(), state_.loss.raw(), state_.loss.bytes());
  runtime_.stream().synchronize();
  taken.result.loss_sums.assign(sums.begin(), sums.end());
  return taken.loss();
}

void TrainingRun::save(const Progress& progress, RunCheckpoints::Save which) {
  checkpoints_.save(progress.step,
                    {{"config", to_json(config_)},
                     {"loader", progress.loader_state},
                     {"tokens", progress.tokens},
                     {"steps_s", progress.steps_s},
                     {"guard", progress.guard},
                     {"bfloat16_until", progress.bfloat16_until}},
                    which);
}

bool TrainingRun::weights_are_finite() {
  Stream& stream = runtime_.stream();
  const Tensor& sum = state_.optimizer.grad_sum_of_squares();  // nobody needs it any more
  float squares = 0;
  stream.zero(sum);
  sum_of_squares({.out = sum, .x = state_.parameters.master()}, stream);
  stream.copy(&squares, sum.raw(), sizeof(squares));
  stream.synchronize();
  return runtime_.group().all_reduce_max(std::isfinite(squares) ? 0 : 1) == 0;
}

void TrainingRun::roll_back(int64_t step) {
  std::optional<Checkpoint> checkpoint = checkpoints_.open_last(loaded_parts(state_));
  SampleRange samples;
  runtime_.group().agree_on_files("rolling back", [&] {
    CHECK(checkpoint.has_value(), "there is no checkpoint to roll back to from step {}", step);
    const auto found = std::find_if(recent_samples_.begin(), recent_samples_.end(),
                                    [&](const auto& recent) { return recent.first == step; });
    CHECK(found != recent_samples_.end(), "the samples of step {} are not known", step);
    CHECK(stage_of_step(config_, checkpoint->step() + 1) == stage_of_step(config_, start_.step + 1),
          "the newest undamaged checkpoint, {}, belongs to an earlier stage, so step {} cannot be rolled back to it",
          checkpoint->path().string(), step);
    samples = found->second;
    config_.data.skip.push_back(samples);
    load(*checkpoint);
    recent_samples_.clear();
  });
  publish_weights(state_);
  corruption_.emplace(config_, runtime_, state_, checkpoints_);  // what of it was pending is of steps that are no more
  if (!runtime_.group().is_root()) return;
  log_event(EventKind::kRollback, start_.step, "back to {} after step {}; samples {} to {} are passed over",
            checkpoint->path().string(), start_.step, samples.begin, samples.end - 1);
}

void TrainingRun::return_to(const Progress& progress) {
  start_ = progress;
  recent_samples_.clear();
}

// Replaces what refers to parts of the old state.
void TrainingRun::switch_precision() {
  checkpoints_.staged().wait(runtime_.stream());
  fp8_reporter_.reset();
  corruption_.reset();
  model_.use_bfloat16(!in_bfloat16(), runtime_);
  prepare_fp8_reports();
  corruption_.emplace(config_, runtime_, state_, checkpoints_);
}

}  // namespace octavo
